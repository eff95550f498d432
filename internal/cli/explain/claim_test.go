package explain

import (
	"math"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// answer is one case: a world, and the answer about it.
type answer struct {
	name string
	of   *world
	// wantVerdict, wantNext and wantCommand are parts of the printed answer. An empty command means
	// that there is none.
	wantVerdict, wantNext, wantCommand string
}

func (c answer) check(t *testing.T) {
	t.Helper()
	e := chain(c.of.view)
	if !strings.Contains(e.Verdict, c.wantVerdict) {
		t.Errorf("verdict %q, want %q in it", e.Verdict, c.wantVerdict)
	}
	if !strings.Contains(e.next(), c.wantNext) {
		t.Errorf("next %q, want %q in it", e.next(), c.wantNext)
	}
	command := strings.Join(e.commands(), "\n")
	if !strings.Contains(command, c.wantCommand) || (command == "") != (c.wantCommand == "") {
		t.Errorf("commands %q, want %q in them", command, c.wantCommand)
	}
	if e.Healthy {
		t.Errorf("it is healthy: %s", e.Verdict)
	}
	if len(e.Links) == 0 || e.Links[0].Object != c.of.view.Asked && c.of.view.Asked.Kind != Volume {
		t.Errorf("the chain does not begin with what was asked for: %+v", e.Links)
	}
}

// with changes a world.
func with(w *world, change func(*world)) *world {
	change(w)
	return w
}

func withoutClass(w *world, class *string) *world {
	w.claim.Spec.StorageClassName, w.claimView.Class, w.claim.Annotations = class, nil, nil
	w.volumeView.Provisioner, w.volumeView.Driver = nil, nil
	return w
}

func TestAPendingClaimWithoutAProvisionerAtWorkSaysWhatIsMissing(t *testing.T) {
	late := func() *world {
		return with(newWorld(), func(w *world) {
			w.class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			w.claim.Annotations = map[string]string{}
		})
	}
	manual := func(candidates ...corev1.PersistentVolume) *world {
		return with(newWorld(), func(w *world) {
			w.class.Provisioner, w.claim.Annotations, w.claimView.Candidates = noProvisioner, nil, candidates
			w.volumeView.Provisioner = nil
			w.nearest()
		})
	}
	called := func(name string) *world {
		return with(newWorld(), func(w *world) {
			w.class.Provisioner, w.class.Parameters, w.claim.Annotations[volume.AnnProvisioner] = name, nil, name
			w.volumeView.Provisioner, w.volumeView.Driver = nil, nil
		})
	}
	for _, c := range []answer{
		{"no class and no default", withoutClass(newWorld(), nil), "claim shop/data is Pending: it names no class, there is no default class", "when a StorageClass becomes the default",
			`kubectl -n shop patch pvc data -p '{"spec":{"storageClassName":"gold"}}'`},
		{"a default that the binder has not given", with(withoutClass(newWorld(), nil), func(w *world) {
			w.class.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
		}), "it is to get the default class gold, but no binder responds", "when a binder runs", ""},
		{"explicitly no class", withoutClass(newWorld(), ptr.To("")), "it requests a volume without a class, and no free one fits", "when a free PersistentVolume without a class fits", ""},
		{"a class that does not exist", withoutClass(newWorld(), ptr.To("goldd")), `StorageClass "goldd" does not exist`, "when StorageClass goldd is created",
			`kubectl -n shop get pvc data -o yaml | kubectl patch --local -f - --type=merge -o yaml -p '{"spec":{"storageClassName":"gold"}}' | kubectl replace --force -f -`},
		{"no-provisioner and nothing at all", manual(), "its class gold makes no volumes, and no free one fits", "when a free PersistentVolume of class gold fits", ""},
		{"no-provisioner, the nearest too small", manual(freeVolume("a", "1Mi"), freeVolume("b", "100Mi"), freeVolume("c", "9Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "x" })),
			"no free one fits", "when a free PersistentVolume of class gold fits", `{"spec":{"resources":{"requests":{"storage":"100Mi"}}}}`},
		{"no-provisioner, the nearest released", manual(freeVolume("old", "2Gi", func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.Spec.ClaimRef = corev1.VolumeReleased, &corev1.ObjectReference{Namespace: "shop", Name: "gone", UID: "x"}
		})), "no free one fits", "", `kubectl patch pv old --type=json -p '[{"op":"test","path":"/spec/claimRef/uid","value":"x"},{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"shop","name":"data","uid":"claim-uid"}}]'`},
		{"a volume fits, and no binder", manual(freeVolume("fit", "1Gi")), "volume fit fits, but no binder responds", "when a binder runs", ""},
		{"a volume fits, and a webhook refuses the write", with(manual(freeVolume("fit", "1Gi")), func(w *world) {
			w.claimView.Events = []corev1.Event{{Type: corev1.EventTypeWarning, Reason: "FailedBinding", ReportingController: "tarn-controller", Message: "the API server rejects a write: a webhook says no", LastTimestamp: metav1.NewTime(w.view.Now)}}
		}), "volume fit fits, and the API server rejects a write: a webhook says no", "when the API server accepts the write", ""},
		{"waiting for a pod", late(), "its class waits for a pod that uses it, and there is none", "when a pod that uses the claim is created", ""},
		{"waiting for a pod nobody can place", with(late(), func(w *world) { w.claimView.Users = []user{{Pod: somePod("shop", "web", unscheduled)}} }),
			"pod shop/web, which uses it, is not scheduled: 0/1 nodes fit", "when the scheduler finds a node", ""},
		{"waiting for a pod that has room nowhere", with(late(), func(w *world) {
			w.claimView.Users = []user{{Pod: somePod("shop", "web", unscheduled)}}
			w.claimView.Free = []freeOn{{"n2", 1 << 30 * 9 / 10}, {"n1", 0}}
		}), "no node has the 1Gi free that it asks for: class gold has 921.5Mi on node n2", "when a node has room", ""},
		{"waiting for a pod that has room on some nodes", with(late(), func(w *world) {
			w.claimView.Users = []user{{Pod: somePod("shop", "web", unscheduled)}}
			w.claimView.Free = []freeOn{{"n3", math.MaxInt64}, {"n1", 0}}
		}), "pod shop/web, which uses it, is not scheduled: 0/1 nodes fit", "", ""},
		{"waiting for a pod that is held back", with(late(), func(w *world) {
			w.claimView.Users = []user{{Pod: somePod("shop", "web", unscheduled, func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated })}}
		}), "is held back by scheduling gates", "when its scheduling gates are removed", ""},
		{"waiting for a pod that names its node", with(late(), func(w *world) { w.claimView.Users = []user{{Pod: somePod("shop", "web")}} }),
			"sets spec.nodeName", "", "kubectl -n shop delete pod web"},
		{"waiting for several pods, the nearest to be placed", with(late(), func(w *world) {
			gated := func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }
			w.claimView.Users = []user{{Pod: somePod("shop", "names-its-node")}, {Pod: somePod("shop", "gated", unscheduled, gated)}, {Pod: somePod("shop", "stuck", unscheduled)}}
		}), "pod shop/stuck, which uses it, is not scheduled: 0/1 nodes fit", "when the scheduler finds a node", ""},
		{"waiting for several pods, one of which is new", with(late(), func(w *world) {
			w.claimView.Users = []user{{Pod: somePod("shop", "stuck", unscheduled)}, {Pod: somePod("shop", "new", func(p *corev1.Pod) { p.Spec.NodeName = "" })}}
		}), "pod shop/new, which uses it, is not scheduled yet", "when the scheduler has placed the pod", ""},
		{"a provisioner that is nowhere", called("goldd"), `there is no PavProvisioner "goldd", nor a CSI driver of that name`, "when PavProvisioner goldd is created", `-p '{"provisioner":"gold"}' | kubectl replace --force`},
		{"a plugin Kubernetes no longer has", called("kubernetes.io/rbd"), "its provisioner kubernetes.io/rbd is no longer served", "", ""},
		{"an external driver that is not registered", called("csi.example.org"), "provisioner csi.example.org has not responded, and it is not registered", "when the provisioner is installed", ""},
		{"an external driver whose class a binder had not seen", with(called("csi.example.org").event(corev1.EventTypeWarning, "ProvisioningFailed", "there is no StorageClass"), func(w *world) {
			w.claimView.Events[0].ReportingController = "tarn-controller"
		}), "provisioner csi.example.org has not responded", "when the provisioner is installed", ""},
		{"an external driver at work", with(called("csi.example.org"), func(w *world) { w.volumeView.Driver = &storagev1.CSIDriver{} }), "was called and has not made the volume yet", "its own log", ""},
		{"an external driver that has failed", called("csi.example.org").event(corev1.EventTypeWarning, "ProvisioningFailed", "quota used up"), "cannot make its volume: quota used up", "when the provisioner retries", ""},
		{"a provisioner inside Tarn's controller", called(hostPath), "provisioner tarn.dev/host-path has not started", "--host-path-root", ""},
		{"one inside Tarn's controller, which was called just now", with(called(hostPath), func(w *world) { w.claim.CreationTimestamp = *ahead(-200 * time.Millisecond) }),
			"provisioner tarn.dev/host-path has to make its volume, which starts within moments", "within moments", ""},
		{"one inside Tarn's controller, called just now, where none runs", gaveUp(with(called(hostPath), func(w *world) { w.claim.CreationTimestamp = *ahead(-200 * time.Millisecond) })),
			"provisioner tarn.dev/host-path has to make its volume, but no tarn controller runs", "when tarn controller runs", ""},
		{"one inside Tarn's controller at work", with(called(hostPath).event(corev1.EventTypeNormal, "Provisioning", "tarn.dev/host-path is making a volume"), promised),
			"its volume is being made by tarn.dev/host-path", "when the directory is created", ""},
		{"one inside Tarn's controller at work, which ended", gaveUp(with(called(hostPath), promised)), "its volume is being made by tarn.dev/host-path, but no tarn controller runs", "when tarn controller runs", ""},
		{"a binder that has not called", with(newWorld(), func(w *world) { w.claim.Annotations = nil }), "PavProvisioner gold has to be called, but no binder responds", "when a binder runs", ""},
		{"a binder of Tarn's that has not called", with(newWorld(), func(w *world) { w.claim.Annotations = nil; ownWork("*,-protect")(w) }), "but no binder responds", "when a binder runs", "kubectl -n tarn-system rollout restart deployment tarn-controller"},
		{"a binder of Kubernetes' that has not called", with(newWorld(), func(w *world) { w.claim.Annotations = nil; ownWork("*,-bind")(w) }), "but no binder responds", "when a binder runs", ""},
		{"its volume is made, and a binder of Tarn's has not bound it", with(newWorld(), func(w *world) {
			vol := freeVolume("pvc-claim-uid", "1Gi", func(v *corev1.PersistentVolume) {
				v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "claim-uid"}
			})
			w.volumeView.Volume = &vol
			ownWork("*")(w)
		}), "volume pvc-claim-uid is reserved for it, but no binder responds", "when a binder runs", "kubectl -n tarn-system rollout restart deployment tarn-controller"},
		{"no class, where the classes cannot be read", with(withoutClass(newWorld(), nil), func(w *world) {
			w.view.Unread = []unread{{Object{Kind: storageClass}, needs}}
		}), "it names no class, and no free volume without a class fits", "", ""},
		{"a selector that an earlier Kubernetes took", with(newWorld(), func(w *world) {
			w.claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "shelf", Operator: metav1.LabelSelectorOpIn, Values: []string{"shelf 7"}}}}
		}), "its selector is not valid", "when the claim is created again with a valid selector", ""},
		{"a volume that is named and missing", with(newWorld(), func(w *world) { w.claim.Spec.VolumeName = "mine" }), "it names volume mine, which does not exist", "when a PersistentVolume of that name", ""},
		{"a named volume that is another's", with(newWorld(), func(w *world) {
			vol := freeVolume("mine", "1Gi", func(v *corev1.PersistentVolume) {
				v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{Namespace: "shop", Name: "c", UID: "d"}, corev1.VolumeReleased
			})
			w.claim.Spec.VolumeName, w.volumeView.Volume = "mine", &vol
		}), "it names volume mine, which belongs to another claim", "when the volume is freed", "kubectl patch pv mine"},
		{"a named volume that does not fit", with(newWorld(), func(w *world) {
			vol := freeVolume("mine", "1Mi")
			w.claim.Spec.VolumeName, w.volumeView.Volume = "mine", &vol
		}), `it names a volume that does not fit: volume "mine" has 1Mi, the claim asks for 1Gi`, "when the volume fits the claim", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestAPendingClaimOfAPavProvisionerSaysWhatThatWaitsFor(t *testing.T) {
	for _, c := range []answer{
		{"it is not accepted", with(newWorld(), func(w *world) {
			w.provisioner.Status.Conditions[0] = metav1.Condition{Type: pavv1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "TemplateInvalid", Message: "line 1, column 3", LastTransitionTime: began}
		}), "PavProvisioner gold is not accepted: line 1, column 3", "when the PavProvisioner is corrected", "kubectl edit pavprovisioner gold"},
		{"it is being deleted", with(newWorld(), func(w *world) { w.provisioner.DeletionTimestamp = &began }), "is being deleted and makes no new volumes", "when it has been deleted and created again", ""},
		{"it is not dynamic", with(newWorld(), func(w *world) { w.provisioner.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeStatic} }),
			"does not contain Dynamic", "when it has both", "kubectl edit pavprovisioner gold"},
		{"nobody has judged it and nobody is there", with(newWorld(), func(w *world) { w.provisioner.Status.Conditions, w.view.Controller = nil, nil }),
			"PavProvisioner gold has to be validated, but has not started; no lease shows whether a tarn controller runs", "when tarn controller runs", ""},
		{"the claim has a data source", with(newWorld(), func(w *world) { w.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{} }), "makes no volumes from a data source", "", `"path":"/spec/dataSourceRef"`},
		{"its data source cannot be copied", with(newWorld().event(corev1.EventTypeWarning, "ProvisioningFailed", "the PVC DataSource from is being deleted"), func(w *world) {
			w.provisioner.Spec.VolumeCreation = testkit.Section(`{"handle": "{{ source.handle }}"}`)
			w.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "from"}
		}), "cannot make its volume: the PVC DataSource from is being deleted", "when the data source can be copied", ""},
		{"a populator serves the claim", with(newWorld(), func(w *world) {
			w.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("example.org"), Kind: "Backup", Name: "monday"}
		}), "the volume populator of Backup monday has not given it a volume", "when the populator gives the claim its volume", ""},
		{"the claim has a selector", with(newWorld(), func(w *world) { w.claim.Spec.Selector = &metav1.LabelSelector{} }), "makes no volumes from a selector", "", `"path":"/spec/selector"`},
		{"the claim has a VolumeAttributesClass", with(newWorld(), func(w *world) { w.claim.Spec.VolumeAttributesClassName = ptr.To("fast") }), "makes no volumes from a VolumeAttributesClass", "", `"path":"/spec/volumeAttributesClassName"`},
		{"the claim asks for more than its own limit", with(newWorld(), limited("500Mi")), "it requests 1Gi, more than its own limit of 500Mi", "when the claim is created again with a limit of at least", `"path":"/spec/resources/limits"`},
		{"a template fails for a claim beyond its own limit", with(newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "minCapacity"), both(limited("500Mi"), templateFails)),
			"PavProvisioner gold rejects it, attempt 3: minCapacity", "attempt 4", "kubectl delete pavvolume pvc-claim-uid"},
		{"a template fails", with(newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "minCapacity"), both(limited("1Gi"), templateFails)),
			"PavProvisioner gold rejects it, attempt 3: minCapacity", "attempt 4", "kubectl edit pavprovisioner gold"},
		{"the class names a Secret that nobody reads", with(newWorld(), func(w *world) {
			w.class.Parameters = map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "key"}
		}), `has parameter "csi.storage.k8s.io/node-stage-secret-name" with value "key", which no template of PavProvisioner "gold" reads`, "or a template reads it", ""},
		{"the class names a Secret by an annotation that is missing", with(newWorld(), func(w *world) {
			w.class.Parameters = map[string]string{"csi.storage.k8s.io/node-publish-secret-name": "${pvc.annotations['key']}", "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}"}
		}), `the claim has no annotation "key"; set it to the name of a Secret`, "when the claim's annotation is corrected", ""},
		{"the controller's clock is behind, and the lease is renewed", with(newWorld(), func(w *world) {
			w.view.Controller.Spec.RenewTime.Time = began.Time
			w.view.Controller.CreationTimestamp = began
			w.view.Controller.ManagedFields = []metav1.ManagedFieldsEntry{{Time: ptr.To(metav1.NewTime(now.Add(-time.Second)))}}
		}), "has not started although tarn controller runs", "when the controller reconciles it", ""},
		{"the controller's lease ran out", with(newWorld(), func(w *world) { w.view.Controller.Spec.RenewTime.Time = began.Time }), "no tarn controller runs", "when tarn controller runs", ""},
		{"the controller's Deployment is scaled to none", with(newWorld(), deployed(0)), "no tarn controller runs", "when tarn controller runs", "kubectl -n tarn-system scale deployment tarn-controller --replicas=2"},
		{"the controller's pods are not ready", with(newWorld(), deployed(2)), "no tarn controller runs", "when tarn controller runs", "kubectl -n tarn-system rollout restart deployment tarn-controller"},
		{"the controller runs and has not begun", newWorld(), "has not started although tarn controller runs", "when the controller reconciles it", ""},
		{"validation has refused it", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "shelf 7 is full").step(tarnv1.StepValidation),
			"PavProvisioner gold rejects it, attempt 3: shelf 7 is full", "attempt 4 in 30s, at 03:04:35Z", "kubectl delete pavvolume pvc-claim-uid"},
		{"creation has failed", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk"), "its volume could not be made, attempt 3: no disk", "attempt 4 in 30s", "kubectl delete pavvolume pvc-claim-uid"},
		{"creation finds no room", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no room for 2Gi: 1Gi of the pool is free"), "no room for 2Gi", "when the claim is created again with a smaller size, or there is more room", "kubectl delete pavvolume"},
		{"creation says which parameter of the class is wrong", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "lower tier in the class"), "lower tier", "attempt 4 in 30s",
			`kubectl get storageclass gold -o yaml | kubectl patch --local -f - --type=merge -o yaml -p '{"parameters":{"tier":"VALUE"}}' | kubectl replace --force -f -`},
		{"the creation pod lacks a Secret", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, waits("CreateContainerConfigError", `secret "bucket" not found`), deadline(7200), func(pod *corev1.Pod) {
			from := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "bucket"}, Key: "id"}
			pod.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: from}}}}}
		}), `secret "bucket" not found`, "when Secret default/bucket exists", "kubectl -n default create secret generic bucket --from-literal=id=VALUE"},
		{"creation is tried again", newWorld().recorded(tarnv1.VolumeCreating).failed(tarnv1.StepCreation, "no disk").step(tarnv1.StepCreation, runs, deadline(7200)), "attempt 2 failed: no disk; now the creation pod", "when it ends", ""},
		{"the creation pod is not scheduled", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, unscheduled, deadline(7200)),
			"the creation pod default/pav-creation is not scheduled: 0/1 nodes fit", "it times out in 60m", "kubectl edit pavprovisioner gold && kubectl -n default delete pod pav-creation"},
		{"the creation pod has no image", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, waits("ImagePullBackOff", "no such image"), deadline(7200)),
			"cannot pull its image: no such image", "it times out", "kubectl -n default delete pod pav-creation"},
		{"the creation pod crashes", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, waits("CrashLoopBackOff", "back-off 40s"), deadline(7200)),
			"keeps crashing: back-off 40s", "it times out", "kubectl -n default delete pod pav-creation"},
		{"the creation pod runs", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200)), "has been running for 60m", "when it ends; it times out in 60m", ""},
		{"the validation pod is foreign", with(newWorld().recorded(tarnv1.VolumeValidating).step(tarnv1.StepValidation), func(w *world) { w.volumeView.Step.Pod.OwnerReferences = nil }),
			"a pod that is not Tarn's has the name of the validation pod", "when that pod is gone", ""},
		{"the creation pod's node is down", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200)), func(w *world) {
			w.volumeView.Step.Node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
		}), "is on node n1, which is not ready", "when its kubelet responds again", ""},
		{"the creation pod's node is gone", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200)), func(w *world) { w.volumeView.Step.NodeGone = true }),
			"the creation pod default/pav-creation is on node n1, which no longer exists", "when Kubernetes deletes the pod", ""},
		{"the creation pod has to go, and its node is down", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200)), func(w *world) {
			w.volumeView.Step.Pod.DeletionTimestamp = ahead(-time.Second)
			w.volumeView.Step.Node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
		}), "the creation pod default/pav-creation is being deleted, but its node n1 is not ready", "when its kubelet responds again", ""},
		{"the creation pod does not go", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200)), func(w *world) { w.volumeView.Step.Pod.DeletionTimestamp = &began }),
			"the creation pod default/pav-creation cannot be deleted: node n1 does not respond", "when the pod is gone", ""},
		{"the creation pod is kept by somebody's finalizer", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs, deadline(7200)), func(w *world) {
			w.volumeView.Step.Pod.DeletionTimestamp, w.volumeView.Step.Pod.DeletionGracePeriodSeconds, w.volumeView.Step.Pod.Finalizers = &began, ptr.To[int64](0), []string{"example.org/audit"}
		}), "the creation pod default/pav-creation is being deleted: finalizer example.org/audit keeps it; it belongs to the owner of the name example.org", "when its owner removes it", "kubectl -n default patch pod pav-creation"},
		{"the creation pod has ended, and nobody tells of it", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, ended1ago, deadline(7200)),
			"the creation pod default/pav-creation has ended, and the node agent on n1 has not read what it left in /pav", "when the node agent on n1 has read", ""},
		{"the creation pod was taken away and nobody makes it again", with(newWorld().recorded(tarnv1.VolumeCreating), func(w *world) { w.view.Controller = nil }), "its volume is being made, attempt 1", "when tarn controller runs", ""},
		{"an attempt is undone", with(newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepCreation, "no disk"), func(w *world) { w.record.Status.NextDeletionTime = nil }),
			"attempt 3 failed: no disk; now Tarn is removing what an attempt may have left, attempt 3", "", ""},
		{"an attempt is undone by a pod that starts", with(newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepCreation, "no disk").step(tarnv1.StepDeletion, waits("ContainerCreating", ""), deadline(7200)), func(w *world) { w.record.Status.NextDeletionTime = nil }),
			"attempt 3 failed: no disk; now the deletion pod default/pav-deletion is starting", "when its containers start", ""},
		{"an attempt is undone by a pod that has just ended", with(newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepCreation, "no disk").step(tarnv1.StepDeletion, deadline(7200), func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
		}), func(w *world) { w.record.Status.NextDeletionTime = nil }),
			"now the deletion pod default/pav-deletion has ended, and the kubelet has not reported how", "when the kubelet has reported how it ended", ""},
		{"an attempt after a failed one was given up", with(newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepCreation, "no disk").provisioned("ClaimGone", "the claim was deleted"), func(w *world) { w.record.Status.NextDeletionTime = nil }),
			"claim shop/data is Pending: Tarn is removing what an attempt may have left, attempt 3", "", ""},
		{"undoing fails", newWorld().recorded(tarnv1.VolumeUndoing).failed(tarnv1.StepDeletion, "still busy"), "its storage could not be removed: still busy (attempt 3)", "attempt 4 in 30s, at 03:04:35Z; at once if the PavProvisioner is changed, or with: tarn retry volume pvc-claim-uid", "kubectl edit pavprovisioner gold"},
		{"it waits for another volume's handle", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk").provisioned(steppod.ReasonHandleGoing, `volumeHandle "a" is still that of x`),
			`claim shop/data is Pending: volumeHandle "a" is still that of x`, "when the storage of the other volume is deleted", ""},
		{"it waits for another volume's handle once it is validated", newWorld().recorded(tarnv1.VolumeValidating).provisioned(steppod.ReasonHandleGoing, `volumeHandle "a" is still that of x`),
			`claim shop/data is Pending: volumeHandle "a" is still that of x`, "when the storage of the other volume is deleted", ""},
		{"what it has made under another volume's handle waits to be undone", with(newWorld().recorded(tarnv1.VolumeUndoing), func(w *world) {
			w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: steppod.ReasonHandleGoing, Message: `volumeHandle "a" is still that of x`, LastTransitionTime: began}}
		}), `Tarn cannot yet remove what an attempt may have left: volumeHandle "a" is still that of x`, "", ""},
		{"it has another volume's handle", with(newWorld().recorded(tarnv1.VolumeDisputed).failed(tarnv1.StepCreation, "volume x has the handle"), func(*world) {}), "volume x has the handle", "when an administrator has resolved it", "kubectl delete pavvolume pvc-claim-uid"},
		{"it is made and is not handed over", with(newWorld().recorded(tarnv1.VolumeCreated), func(w *world) {
			w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Message: "the API server refuses it", LastTransitionTime: began}}
			w.view.Controller = nil
		}), "its volume is made, but its PersistentVolume is not created: the API server refuses it", "when tarn controller runs", ""},
		{"its record says why nothing has begun", with(newWorld().recorded(tarnv1.VolumePending), func(w *world) {
			w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Message: "PavProvisioner is not accepted", LastTransitionTime: began}}
			w.volumeView.Provisioner = nil
		}), "PavProvisioner gold has not started: PavProvisioner is not accepted", "", ""},
		{"its record says why nothing had begun, and that is mended", with(newWorld().recorded(tarnv1.VolumePending), func(w *world) {
			w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Message: "PavProvisioner is not accepted", LastTransitionTime: began}}
			w.record.CreationTimestamp = metav1.NewTime(now)
		}), "PavProvisioner gold is about to start", "within moments", ""},
		{"its first attempt does not begin", newWorld().recorded(tarnv1.VolumePending), "the first attempt of PavProvisioner gold is due, but has not started although tarn controller runs", "when the controller reconciles it", ""},
		{"it is made, and nobody says why it is not handed over", with(newWorld().recorded(tarnv1.VolumeCreated), func(w *world) {
			w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: "InProgress", Message: "it is being written", LastTransitionTime: began}}
		}), "its volume is made, and its PersistentVolume has to be created, but has not started although tarn controller runs", "when the controller reconciles it", ""},
		{"it is made and not written", newWorld().recorded(tarnv1.VolumeCreated), "its volume is made, and its PersistentVolume is about to be created", "within moments", ""},
	} {
		t.Run(c.name, c.check)
	}
}

// ended1ago makes a step pod end a second ago, with results that the node agent has not reported.
func ended1ago(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodSucceeded
	pod.Spec.Volumes = []corev1.Volume{{Name: "pav", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: tarnv1.ResultsDriver}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: *ahead(-time.Second)}}}}
}

// deployed makes Tarn's controller a Deployment that has released its lease.
func deployed(replicas int32) func(*world) {
	return func(w *world) {
		w.view.Controller.Spec.HolderIdentity = nil
		w.view.Deployment = &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "tarn-controller"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas},
		}
	}
}

func TestALostClaimSaysHowItComesBack(t *testing.T) {
	lost := func(change func(*world)) *world {
		return with(newWorld().bound(), func(w *world) { w.claim.Status.Phase = corev1.ClaimLost; change(w) })
	}
	for _, c := range []answer{
		{"its volume was removed and Tarn has the record", lost(func(w *world) { w.volumeView.Volume = nil }), "claim shop/data is Lost: its volume pvc-claim-uid was deleted while the claim was bound to it", "when a PersistentVolume of that name exists again", "kubectl create -f - <<'EOF'"},
		{"its volume was removed and nobody knows it", lost(func(w *world) { w.volumeView.Volume, w.volumeView.Record = nil, nil }), "was deleted while the claim was bound to it", "when a PersistentVolume of that name", "kubectl -n shop delete pvc data"},
		{"its volume names a claim that is gone", lost(func(w *world) { w.volume.Spec.ClaimRef.UID, w.volumeView.Claim = "other", nil }), `names another claim, shop/data, uid "other"`, "when the volume names this claim",
			`[{"op":"test","path":"/spec/claimRef/uid","value":"other"},{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"shop","name":"data","uid":"claim-uid"}}]`},
		{"its volume names a claim that is there", lost(func(w *world) {
			other := w.claim.DeepCopy()
			other.Name, other.UID = "other", "other-uid"
			w.volume.Spec.ClaimRef.Name, w.volume.Spec.ClaimRef.UID, w.volumeView.Claim = "other", "other-uid", other
		}), `its volume pvc-claim-uid names another claim, shop/other, uid "other-uid"`, "when the volume names this claim again, by its UID", ""},
		{"its volume is there again", lost(func(w *world) { w.volume.Spec.ClaimRef = nil }), "is reserved for it again, but no binder responds", "when a binder runs", ""},
		{"it names no volume", lost(func(w *world) { w.claim.Spec.VolumeName = "" }), "no longer names a volume", "", "kubectl -n shop delete pvc data"},
	} {
		t.Run(c.name, c.check)
	}
}

func TestATerminatingClaimSaysWhatKeepsIt(t *testing.T) {
	ending := func(finalizers []string, users ...user) *world {
		return with(newWorld().bound(), func(w *world) {
			w.claim.DeletionTimestamp, w.claim.Finalizers, w.claimView.Users = &began, finalizers, users
		})
	}
	protected := []string{claimProtection}
	ofApp := func(p *corev1.Pod) { p.Labels = map[string]string{tarnv1.LabelApp: "web"} }
	for _, c := range []answer{
		{"a pod", ending(protected, user{Pod: somePod("shop", "web", runs)}), "claim shop/data is Terminating: it is used by pod shop/web", "when the pod is gone", "kubectl -n shop delete pod web"},
		{"a pod of a Deployment", ending(protected, user{Pod: somePod("shop", "web", runs), Workload: Object{"Deployment", "shop", "web"}}), "it is used by pod shop/web", "when the pod is gone", "kubectl -n shop scale deployment web --replicas=0"},
		{"a pod of an App", ending(protected, user{Pod: somePod("shop", "web", runs, ofApp), Workload: Object{"Deployment", "shop", "paas-app-web"}}), "it is used by pod shop/web", "when the pod is gone", "tarn app scale web 0 --namespace shop"},
		{"a pod of a Job", ending(protected, user{Pod: somePod("shop", "web", runs), Workload: Object{"Job", "shop", "fill"}}), "it is used by pod shop/web", "when the pod is gone", `kubectl -n shop patch job fill -p '{"spec":{"suspend":true}}'`},
		{"an ended pod that is still there", ending(protected, user{Pod: somePod("shop", "done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}), "it is used by pod shop/done", "when the pod is deleted, or with Tarn's protection when its volume is unmounted", "kubectl -n shop delete pod done"},
		{"nothing but a silent controller", ending(protected, user{Pod: somePod("shop", "web", unscheduled)}), "no pod uses it, but its protection controller does not remove the finalizer", "when the controller runs", ""},
		{"nothing that is known to have lasted", with(ending(protected), func(w *world) { w.view.Twice = false }), "no pod uses it, so it is deleted within moments", "within moments", ""},
		{"nothing but Tarn's protection, which is silent", with(ending(protected), ownWork("*")), "does not remove the finalizer", "when the controller runs", "kubectl -n tarn-system rollout restart deployment tarn-controller"},
		{"nothing but Kubernetes' protection, which is silent", with(ending(protected), ownWork("*,-bind,-protect")), "does not remove the finalizer", "when the controller runs", ""},
		{"a pod whose volume its node cannot unstage", clinging(ending(protected, user{Pod: leaving()})),
			"claim shop/data is Terminating: it is used by pod shop/web, which is being deleted: volume pvc-claim-uid cannot be unstaged on node n1, attempt 2: busy", "unstaging attempt 3 in 40s", ""},
		{"that pod and another", clinging(ending(protected, user{Pod: leaving()}, user{Pod: somePod("shop", "other", runs)})),
			"it is used by 2 pods shop/other, shop/web; shop/web is being deleted: volume pvc-claim-uid cannot be unstaged", "unstaging attempt 3 in 40s", "kubectl -n shop delete pod other"},
		{"a pod that its kubelet does not end", ending(protected, user{Pod: leaving(runs), Workload: Object{"Deployment", "shop", "web"}}),
			"it is used by pod shop/web, which is being deleted: its containers have not ended", "when its containers have ended", ""},
		{"a pod on a node that is down", with(ending(protected, user{Pod: leaving()}), func(w *world) {
			w.claimView.Users[0].View = &podView{Pod: w.claimView.Users[0].Pod, Node: &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}}
		}), "it is used by pod shop/web, which is being deleted: its node n1 is not ready", "when its kubelet responds again", ""},
		{"a pod that a finalizer keeps", ending(protected, user{Pod: leaving(func(p *corev1.Pod) {
			p.DeletionGracePeriodSeconds, p.Finalizers = ptr.To[int64](0), []string{"example.org/audit"}
		})}),
			"it is used by pod shop/web, which is being deleted: finalizer example.org/audit keeps it", "when its owner removes it", "kubectl -n shop patch pod web"},
		{"a finalizer that is known", ending([]string{"provisioner.storage.kubernetes.io/cloning-protection"}), "until no clone of the claim is being made", "when its owner removes it", ""},
		{"a finalizer of somebody", ending([]string{"example.org/audit"}), "finalizer example.org/audit keeps it; it belongs to the owner of the name example.org", "when its owner removes it",
			`kubectl -n shop patch pvc data --type=json -p '[{"op":"test","path":"/metadata/finalizers/0","value":"example.org/audit"},{"op":"remove","path":"/metadata/finalizers/0"}]'`},
	} {
		t.Run(c.name, c.check)
	}
}

// leaving returns a pod shop/web that is being deleted and whose containers have ended.
func leaving(changes ...func(*corev1.Pod)) *corev1.Pod {
	return somePod("shop", "web", append([]func(*corev1.Pod){stops, func(p *corev1.Pod) { p.DeletionTimestamp = &began }}, changes...)...)
}

// clinging gives a world's volume a stage on node n1 that cannot be ended.
func clinging(w *world) *world {
	return w.staged(func(g *tarnv1.PavStage) {
		g.DeletionTimestamp = &began
		g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodUnstaging, UnstageAttempts: 2, Message: "busy", NextAttemptTime: ahead(40e9)}
	})
}

// limited gives the claim a limit.
func limited(limit string) func(*world) {
	return func(w *world) {
		w.claim.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(limit)}
	}
}

func resizeFails(reason string) func(*world) {
	return func(w *world) {
		w.claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimControllerResizeError, Reason: reason, Message: "because"}}
	}
}

func both(one, other func(*world)) func(*world) { return func(w *world) { one(w); other(w) } }

func templateFails(w *world) { w.record.Status.LastError.Reason = steppod.ReasonTemplate }

// ownWork makes Tarn's controller a Deployment with a given --controllers.
func ownWork(controllers string) func(*world) {
	return func(w *world) {
		deployed(1)(w)
		w.view.Deployment.Spec.Template.Spec.Containers = []corev1.Container{{Command: []string{"tarn", "controller", "--controllers=" + controllers}}}
	}
}

func TestAClaimThatIsToGrowSaysHowFarItIs(t *testing.T) {
	growing := func(status corev1.ClaimResourceStatus, change func(*world)) *world {
		return with(newWorld().bound(), func(w *world) {
			w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
			if status != "" {
				w.claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: status}
			}
			w.record.Status.Expansion = &tarnv1.PavVolumeExpansion{TargetCapacity: 2 << 30, Attempts: 1}
			change(w)
		})
	}
	nothing := func(*world) {}
	for _, c := range []answer{
		{"nobody has begun", growing("", nothing), "it is to be expanded from 1Gi to 2Gi", "when tarn controller begins", ""},
		{"nobody is there to begin", growing("", func(w *world) { w.view.Controller = nil }), "it is to be expanded from 1Gi to 2Gi", "when tarn controller runs", ""},
		{"the pod is not made", growing(corev1.PersistentVolumeClaimControllerResizeInProgress, func(*world) {}), "it is to be expanded from 1Gi to 2Gi", "when tarn controller starts it", ""},
		{"the pod runs", growing(corev1.PersistentVolumeClaimControllerResizeInProgress, func(w *world) { w.step(tarnv1.StepExpansion, runs, deadline(7200)) }), "the expansion pod default/pav-expansion has been running", "when it ends", ""},
		{"it has failed", growing(corev1.PersistentVolumeClaimControllerResizeInProgress, func(w *world) {
			w.record.Status.Expansion.LastError = &tarnv1.PavVolumeError{Message: "no room", Reason: "PodFailed", Time: began}
			w.record.Status.Expansion.Failures, w.record.Status.Expansion.NextAttemptTime = 2, ahead(time.Minute)
		}), "it cannot be expanded, attempt 2: no room", "retried in 60s", "kubectl edit pavprovisioner gold"},
		{"it is infeasible", growing(corev1.PersistentVolumeClaimControllerResizeInfeasible, nothing), "it is to be expanded", "", "kubectl edit pavprovisioner gold"},
		{"it is to grow beyond the claim's own limit", growing(corev1.PersistentVolumeClaimControllerResizeInfeasible, both(limited("1500Mi"), resizeFails(steppod.ReasonRefused))), "it is to be expanded from 1Gi to 2Gi", "when the claim requests more than 1Gi and at most its own limit of 1500Mi",
			`kubectl -n shop patch pvc data -p '{"spec":{"resources":{"requests":{"storage":"1500Mi"}}}}'`},
		{"it has grown to the claim's own limit", growing(corev1.PersistentVolumeClaimControllerResizeInfeasible, both(limited("1Gi"), resizeFails(steppod.ReasonRefused))), "it is to be expanded from 1Gi to 2Gi", "never: the claim's own limit of 1Gi", ""},
		{"no volume of its provisioner grows, whatever its limit", growing(corev1.PersistentVolumeClaimControllerResizeInfeasible, both(limited("1500Mi"), resizeFails("NotExpandable"))), "it is to be expanded from 1Gi to 2Gi", "", "kubectl edit pavprovisioner gold"},
		{"no pod was ever started for it", growing(corev1.PersistentVolumeClaimControllerResizeInfeasible, func(w *world) { w.record.Status.PodNamespace = "" }), "it is to be expanded from 1Gi to 2Gi", "when you remove what rejects it", "kubectl edit pavprovisioner gold"},
		{"it was written by hand", growing(corev1.PersistentVolumeClaimControllerResizeInfeasible, func(w *world) { w.volumeView.Record = nil }), "it is to be expanded", "never by itself: Tarn did not make it", ""},
		{"it was written by hand, and nobody has said so", growing("", func(w *world) { w.volumeView.Record = nil }), "it is to be expanded", "never by itself: Tarn did not make it", ""},
		{"it was written by hand and has grown", growing("", func(w *world) {
			w.volumeView.Record = nil
			w.volume.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
		}),
			"it is to be expanded", "when tarn controller begins", ""},
		{"it was written by hand and cannot follow on a node", growing(corev1.PersistentVolumeClaimNodeResizeInfeasible, func(w *world) { w.volumeView.Record = nil }),
			"it is to be expanded", "when you remove what rejects it", "kubectl edit pavprovisioner gold"},
		{"the node has yet to follow", growing(corev1.PersistentVolumeClaimNodeResizePending, nothing), "its file system is expanded with the next pod that uses it", "when a pod that uses the claim is started", ""},
		{"the node cannot follow", growing(corev1.PersistentVolumeClaimNodeResizeInProgress, func(w *world) {
			w.claimView.Users = []user{{Pod: somePod("shop", "web", runs)}}
			w.staged(func(g *tarnv1.PavStage) {
				g.Status.Pod.Expansion = &tarnv1.StageExpansion{Phase: tarnv1.StageExpansionFailed, Message: "resize2fs failed"}
			})
		}), "its file system cannot be on node n1: resize2fs failed", "when the kubelet retries", "kubectl edit pavprovisioner gold"},
		{"the node's pod has no image", growing(corev1.PersistentVolumeClaimNodeResizeInProgress, func(w *world) {
			w.claimView.Users = []user{{Pod: somePod("shop", "web", runs)}}
			w.staged(func(g *tarnv1.PavStage) {
				g.Status.Pod.Expansion = &tarnv1.StageExpansion{Phase: tarnv1.StageExpansionRunning, Namespace: "default", Name: "pav-staging"}
			}).stagePod(waits("ErrImagePull", "no such image"), deadline(7200))
		}), "its volume has been expanded, and its file system is to follow on node n1: the node-expansion pod default/pav-staging cannot pull its image: no such image", "it times out", "kubectl edit pavprovisioner gold && kubectl -n default delete pod pav-staging"},
	} {
		t.Run(c.name, c.check)
	}
}
