package explain

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

const foreign = "example.org/backup"

// hides makes an object exist but not be readable.
func hides(w *world, o Object) *world {
	w.view.Unread = append(w.view.Unread, unread{o, needs})
	return w
}

// usedBy makes pods name the claim.
func usedBy(w *world, pods ...*corev1.Pod) *world {
	for _, pod := range pods {
		w.claimView.Users = append(w.claimView.Users, user{Pod: pod})
	}
	w.volumeView.Users = w.claimView.Users
	return w
}

// A user who follows a command blindly must take nothing from a running consumer.
func TestNoCommandTakesFromWhoUsesIt(t *testing.T) {
	pods := Object{Pod, "shop", ""}
	claim := Object{Claim, "shop", "data"}
	lent := func(finalizers ...string) *world { return doomed(newWorld().bound(), finalizers...).askedVolume() }
	ending := func(finalizers ...string) *world { return deleted(newWorld().bound(), finalizers...) }
	web := somePod("shop", "web", runs)
	strip := `[{"op":"test","path":"/metadata/finalizers/0","value":"example.org/backup"},{"op":"remove","path":"/metadata/finalizers/0"}]`
	for _, c := range []answer{
		{"a volume that its claim has, and a finalizer alone keeps", lent(foreign), "finalizer example.org/backup keeps it; it belongs to the owner of the name example.org; claim shop/data uses it",
			"when the claim is gone, and then the finalizer's owner removes the finalizer", "kubectl -n shop delete pvc data"},
		{"such a volume that a pod uses", usedBy(lent(foreign), web), "claim shop/data uses it, which is used by pod web", "when the claim is gone", ""},
		{"a volume that a pod uses, and protection keeps", usedBy(lent(volumeProtection), web), "claim shop/data uses it, which is used by pod web", "when the claim is gone", ""},
		{"a volume that a claim has, of which nobody may see the pods", hides(lent(volumeProtection), pods), "claim shop/data uses it", "when the claim is gone", ""},
		{"a volume that a claim has which is to go as well", with(lent(volumeProtection), func(w *world) { w.claim.DeletionTimestamp = &began }), "claim shop/data uses it", "when the claim is gone", ""},
		{"a volume that a claim and a finalizer keep", lent(foreign, volumeProtection), "is Terminating: claim shop/data uses it", "when the claim is gone", "kubectl -n shop delete pvc data"},
		{"a volume of which nobody may see the claim", hides(with(lent(foreign), func(w *world) { w.volumeView.Claim = nil }), claim), "finalizer example.org/backup keeps it", "when its owner removes it", ""},
		{"a volume that a node has", with(lent(foreign).staged(there), func(w *world) { w.volumeView.Claim = nil }), "finalizer example.org/backup keeps it", "when its owner removes it", ""},
		{"a volume that nobody has", with(lent(foreign), func(w *world) { w.volumeView.Claim = nil }), "finalizer example.org/backup keeps it", "when its owner removes it", strip},
		{"a volume that the storage of is still to be destroyed", with(lent(foreign, "kubernetes.io/pv-controller"), func(w *world) { w.volumeView.Claim = nil }),
			"finalizer kubernetes.io/pv-controller keeps it", "when its owner removes it", ""},
		{"a claim that a pod and a finalizer keep", usedBy(ending(claimProtection, foreign), web), "is Terminating: it is used by pod shop/web", "when the pod is gone", "kubectl -n shop delete pod web"},
		{"a claim that a finalizer and a pod keep", usedBy(ending(foreign, claimProtection), web), "is Terminating: it is used by pod shop/web", "when the pod is gone", "kubectl -n shop delete pod web"},
		{"a claim that a finalizer alone keeps from going from under its pod", usedBy(ending(foreign), web), "is Terminating: it is used by pod shop/web", "when the pod is gone", "kubectl -n shop delete pod web"},
		{"a claim of which nobody may see the pods", hides(ending(foreign), pods), "finalizer example.org/backup keeps it", "when its owner removes it", ""},
		{"a pod that is healthy, though its claim is to go", ending(claimProtection).askedPod(runs), "pod shop/web is running: claim shop/data is being deleted, and waits for this pod: it is deleted when the pod is gone",
			"when the pod is gone; until then the pod is not affected", ""},
		{"an App that is Ready, though its claim is to go", usedBy(ending(claimProtection).asApp("", ""), web), "app shop/web is Ready: claim shop/data: it is used by pod shop/web", "when the pod is gone", ""},
		{"an App that waits for the end of a claim that serves", usedBy(ending(claimProtection).asApp(tarnv1.ReasonWaitingForVolumes, "volume data is being deleted"), web),
			"app shop/web is not Ready: claim shop/data: it is used by pod shop/web", "when the pod is gone", ""},
		{"a pod that waits for the end of a claim that serves", with(usedBy(ending(claimProtection).askedPod(unscheduled), somePod("shop", "other", runs)), func(*world) {}),
			"claim shop/data is being deleted, so no pod that uses it can start", "when a new claim of that name exists", ""},
		{"a claim that is lost, and named by a pod", with(usedBy(newWorld().bound(), web), func(w *world) {
			w.claim.Status.Phase, w.volumeView.Volume, w.volumeView.Record = corev1.ClaimLost, nil, nil
		}), "its volume pvc-claim-uid was deleted while the claim was bound to it", "when a PersistentVolume of that name", ""},
		{"a claim that is lost, of which nobody may see the record", hides(with(newWorld().bound(), func(w *world) {
			w.claim.Status.Phase, w.volumeView.Volume, w.volumeView.Record = corev1.ClaimLost, nil, nil
		}), Object{Kind: pavVolume, Name: "pvc-claim-uid"}), "its volume pvc-claim-uid was deleted while the claim was bound to it", "when a PersistentVolume of that name", ""},
		{"a claim that is lost, of a volume of one node", with(newWorld().bound(), func(w *world) {
			w.claim.Status.Phase, w.volumeView.Volume, w.record.Status.NodeName = corev1.ClaimLost, nil, "n1"
		}), "its volume pvc-claim-uid was deleted while the claim was bound to it", "when a PersistentVolume of that name", ""},
		{"a volume that was released and that a node still has", with(newWorld().bound().askedVolume().staged(there), func(w *world) {
			w.volume.Status.Phase, w.volume.Spec.PersistentVolumeReclaimPolicy, w.volumeView.Claim = corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain, nil
		}), "policy Retain keeps the volume and its data, which a node still uses", "when no node uses it", ""},
		{"storage that a claim was robbed of", with(newWorld().bound().askedVolume(), func(w *world) { w.volumeView.Volume = nil }),
			"it was removed by force, and its storage still exists", "tarn explain claim shop/data says how a claim gets it back", ""},
		{"a volume that another claim may have, which nobody may see", hides(with(newWorld().bound(), func(w *world) {
			w.claim.Status.Phase, w.volume.Spec.ClaimRef.UID, w.volume.Spec.ClaimRef.Name, w.volumeView.Claim = corev1.ClaimLost, "other", "other", nil
		}), Object{Claim, "shop", "other"}), "names another claim, shop/other", "when the volume names this claim", ""},
		{"a claim whose class is not there, which a pod with a node names", usedBy(withoutClass(newWorld(), ptr.To("goldd")), somePod("shop", "placed")), `StorageClass "goldd" does not exist`, "when StorageClass goldd is created", ""},
		{"a pod that made another claim of its", with(newWorld(), func(w *world) {
			w.class.VolumeBindingMode, w.claim.Annotations = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), nil
			usedBy(w, web)
		}), "sets spec.nodeName", "", ""},
		{"a pod that is not Tarn's", with(newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, runs), func(w *world) { w.volumeView.Step.Pod.OwnerReferences = nil }),
			"a pod that is not Tarn's has the name of the creation pod", "when that pod is gone", ""},
		{"a pod that is not Tarn's, which an attempt has met", with(newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "it belongs to something else").step(tarnv1.StepCreation, runs), func(w *world) {
			w.volumeView.Step.Pod.OwnerReferences = nil
		}), "a pod that is not Tarn's has the name of the creation pod", "when that pod is gone", ""},
		{"a claim of another App", with(newWorld().bound().asApp(tarnv1.ReasonRefused, "claim data is taken"), func(w *world) { w.claim.Labels[tarnv1.LabelApp] = "other" }), "claim data is taken", "when you change its spec", ""},
		{"a claim that an App would take from a pod", with(newWorld().bound().asApp(tarnv1.ReasonRefused, "claim data is taken"), func(w *world) { w.claim.Labels = nil; usedBy(w, web) }), "claim data is taken", "when you change its spec", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestTheCommandEndsNoMoreThanThePodThatUsesAClaim(t *testing.T) {
	succeeded := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	for _, c := range []struct {
		name, kind, claim string
		change            func(*corev1.Pod)
		want              string
	}{
		{"of a StatefulSet, by a claim of its own", "StatefulSet", "data-web", runs, "kubectl -n shop delete pod web"},
		{"of a StatefulSet, by a claim of all", "StatefulSet", "data", runs, "kubectl -n shop scale statefulset owner --replicas=0"},
		{"of a DaemonSet", "DaemonSet", "data", runs, "kubectl -n shop delete pod web"},
		{"of a Job", "Job", "data", runs, `kubectl -n shop patch job owner -p '{"spec":{"suspend":true}}'`},
		{"of a Job, which has ended", "Job", "data", succeeded, "kubectl -n shop delete pod web"},
		{"of somebody unknown", "Robot", "data", runs, "kubectl -n shop delete pod web"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := stop(user{Pod: somePod("shop", "web", c.change), Workload: Object{Kind(c.kind), "shop", "owner"}}, c.claim); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// A volume reserved for another claim, or to be destroyed, is not offered to a claim that waits.
func TestAVolumeIsOfferedOnlyWhereItIsNobodysAnyMore(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolume)
		want   bool
	}{
		"it was released and is kept": {func(*corev1.PersistentVolume) {}, true},
		"it is in the trash":          {func(v *corev1.PersistentVolume) { volume.Hold(v, "1h") }, false},
		"it is to be scrubbed":        {func(v *corev1.PersistentVolume) { v.Annotations = map[string]string{tarnv1.AnnotationRecycle: "Zero"} }, false},
		"it is to be destroyed": {func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		}, false},
		"it is being deleted":                        {func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &began }, false},
		"a binder has yet to see to it":              {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }, false},
		"it is reserved for a claim that is to come": {func(v *corev1.PersistentVolume) { v.Status.Phase, v.Spec.ClaimRef.UID = corev1.VolumeAvailable, "" }, false},
	} {
		vol := freeVolume("mine", "2Gi", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{Namespace: "shop", Name: "c", UID: "d"}, corev1.VolumeReleased
		}, c.change)
		named := with(newWorld(), func(w *world) { w.claim.Spec.VolumeName, w.volumeView.Volume = "mine", &vol })
		unnamed := with(newWorld(), func(w *world) {
			w.class.Provisioner, w.claim.Annotations, w.claimView.Candidates, w.volumeView.Provisioner = noProvisioner, nil, []corev1.PersistentVolume{vol}, nil
			w.nearest()
		})
		for how, w := range map[string]*world{"named": named, "the nearest": unnamed} {
			freed := slices.ContainsFunc(chain(w.view).commands(), func(c string) bool { return strings.Contains(c, "/spec/claimRef") })
			if freed != c.want {
				t.Errorf("%s, %s: the volume is offered: %t, want %t", name, how, freed, c.want)
			}
		}
		if e := chain(hides(named, Object{Claim, "shop", "c"}).view); len(e.commands()) > 0 || strings.Contains(e.Links[len(e.Links)-1].Message, "which is gone") {
			t.Errorf("%s: of a claim that cannot be read it is concluded that it is gone: %+v", name, e.Links)
		}
	}
}

// Tarn's controller is restarted only if it does not run.
func TestWhatIsHealthyIsNotRestarted(t *testing.T) {
	uncalled := func(changes ...func(*world)) *world {
		w := with(newWorld(), func(w *world) { w.claim.Annotations = nil; ownWork("*")(w) })
		for _, change := range changes {
			change(w)
		}
		return w
	}
	leads := func(w *world) { w.view.Controller.Spec.HolderIdentity = ptr.To("host-1_a") }
	const silent, restart = "but no binder responds", "kubectl -n tarn-system rollout restart deployment tarn-controller"
	for _, c := range []answer{
		{"it has given its lease up", uncalled(), silent, "when a binder runs", restart},
		{"it holds its lease", uncalled(leads), silent, "when a binder runs", ""},
		{"it may need no lease, and is ready", uncalled(func(w *world) { w.view.Controller, w.view.Deployment.Status.ReadyReplicas = nil, 1 }), silent, "when a binder runs", ""},
		{"it may need no lease, and is not ready", uncalled(func(w *world) { w.view.Controller = nil }), silent, "when a binder runs", restart},
		{"nobody may see its lease", uncalled(func(w *world) { hides(w, Object{lease, "tarn-system", "tarn-controller"}) }), silent, "when a binder runs", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestWhatIsSaidOfAnotherVolumeIsNotTheCause(t *testing.T) {
	mount := func(of string) corev1.Event {
		return corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedMount", LastTimestamp: began,
			Message: `MountVolume.SetUp failed for volume "pvc-` + of + `" : rpc error: code = Internal desc = no loop device`}
	}
	plain := func() *world { return newWorld().bound() }
	for _, names := range [][]string{{"data", "other"}, {"other", "data"}} {
		of := []*claimView{claimNamed(names[0], plain()), claimNamed(names[1], with(plain(), func(w *world) { w.staged(there) }))}
		v := podOn(func(*corev1.Pod) {}, of...)
		v.Pod.Events = []corev1.Event{mount(names[0]), mount(names[1])} // the volume that is staged by now has the last Event
		want := "volume pvc-" + names[0] + " cannot be staged on node n1: no loop device"
		if e := chain(v); !strings.HasSuffix(e.Verdict, want) {
			t.Errorf("got %q, want %q", e.Verdict, want)
		}
	}
	w := newWorld().bound().askedPod(runs, func(p *corev1.Pod) { p.Status.Conditions = nil }) // of a kubelet that does not say when the sandbox is there
	w.view.Pod.Events = []corev1.Event{mount("claim-uid")}
	if e := chain(w.view); !strings.HasSuffix(e.Verdict, "its containers run, but are not ready") || len(e.commands()) > 0 {
		t.Errorf("a pod that has its volumes by now: %q, %q", e.Verdict, e.commands())
	}
	local := with(newWorld(), func(w *world) {
		w.class.Provisioner, w.class.VolumeBindingMode = noProvisioner, ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		w.claim.Annotations, w.volumeView.Provisioner, w.claimView.Candidates = nil, nil, []corev1.PersistentVolume{freeVolume("small", "1Mi")}
	})
	for message, offered := range map[string]bool{"0/1 nodes are available: 1 Insufficient cpu.": false, "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.": true} {
		for _, w := range []*world{local.askedPod(unscheduled, func(p *corev1.Pod) { p.Status.Conditions[0].Message = message })} {
			if e := chain(w.view); (len(e.commands()) > 0) != offered {
				t.Errorf("%s: the commands are %q", message, e.commands())
			}
		}
	}
	driver := with(newWorld(), func(w *world) {
		w.class.Provisioner, w.claim.Annotations[volume.AnnProvisioner] = "goldd", "goldd"
		w.volumeView.Provisioner, w.volumeView.Driver = nil, nil
	})
	if e := chain(hides(driver, Object{Kind: csiDriver, Name: "goldd"}).view); len(e.commands()) > 0 || strings.Contains(e.Verdict, "there is no") {
		t.Errorf("a driver that cannot be read is taken for one that is not there: %s, %q", e.Verdict, e.commands())
	}
}

// A controller would create its pod again with the same spec.nodeName.
func TestAPodThatWouldComeBackAsItIsIsNotDeleted(t *testing.T) {
	w := with(newWorld(), func(w *world) {
		w.class.VolumeBindingMode, w.claim.Annotations = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), nil
		usedBy(w, somePod("shop", "web", func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet"}} }))
	})
	if e := chain(w.view); !strings.Contains(e.Verdict, "sets spec.nodeName") || len(e.commands()) > 0 {
		t.Errorf("%s, %q", e.Verdict, e.commands())
	}
}
