package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestAPodSaysWhichOfItsVolumesItWaitsFor(t *testing.T) {
	mount := func(message string) func(*world) {
		return func(w *world) {
			w.view.Pod.Events = []corev1.Event{{Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: message, LastTimestamp: began}}
		}
	}
	waiting := func(pod func(*tarnv1.PavStagePodStatus)) *world {
		return newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase = tarnv1.StageWaiting
			g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodRunning, Namespace: "default", Name: "pav-staging"}
			pod(&g.Status.Pod)
		})
	}
	const shared = `PersistentVolume "other", which is staged on node "n2", has the same driver "gold" and volumeHandle "shelf-7": ` + tarnv1.StageShared
	same := func(*tarnv1.PavStagePodStatus) {}
	unjudged := func() *world {
		return waiting(func(p *tarnv1.PavStagePodStatus) {
			*p = tarnv1.PavStagePodStatus{Message: `waiting until PavProvisioner "gold" has been checked`}
		})
	}
	secret := func(w *world) {
		w.volume.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "shop", Name: "keys"}
		w.provisioner.Spec.VolumeStaging = testkit.Section(`{"podTemplate": "[ -s /pav/secrets/password ]"}`)
	}
	at := func(n *corev1.Node) *world {
		w := newWorld().bound().askedPod(unscheduled)
		if w.view.Pod.Home = (home{Volume: "pvc-claim-uid", Name: "n1", Node: n, Gone: n == nil}); n != nil {
			n.Name = "n1"
		}
		return w
	}
	for _, c := range []answer{
		{"a claim that waits", newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk").askedPod(unscheduled),
			"pod shop/web is not scheduled: claim shop/data: its volume could not be made, attempt 3: no disk", "attempt 4", "kubectl delete pavvolume"},
		{"a claim that does not exist", with(newWorld().askedPod(unscheduled), func(w *world) { w.view.Claims[0] = &claimView{Object: w.claimView.Object} }), "claim shop/data: it does not exist", "when the claim is created", ""},
		{"a claim that is being deleted", with(newWorld().bound().askedPod(unscheduled), func(w *world) { w.claim.DeletionTimestamp, w.claim.Finalizers = &began, []string{claimProtection} }),
			"claim shop/data is being deleted, so no pod that uses it can start", "", ""},
		{"a local volume of a node that is gone", at(nil), "its volume pvc-claim-uid is on node n1 alone, which no longer exists", "when a node of that name exists", ""},
		{"a local volume of a node that is down", at(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}),
			"its volume pvc-claim-uid is on node n1 alone, which is not ready", "when its kubelet responds again", ""},
		{"a local volume of a node that is cordoned", at(&corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}), "on node n1 alone, which is cordoned", "when it is uncordoned", "kubectl uncordon n1"},
		{"a local volume of a node that is out of service", at(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}}}),
			"on node n1 alone, which is marked as out of service", "when its taint is removed", "kubectl taint node n1 node.kubernetes.io/out-of-service-"},
		{"a local volume of a node that is full", at(&corev1.Node{}), "the scheduler finds no node for it, and its volume pvc-claim-uid is on node n1 alone: 0/1 nodes fit", "when the scheduler finds a node", ""},
		{"the scheduler", newWorld().bound().askedPod(unscheduled), "the scheduler finds no node for it: 0/1 nodes fit", "when the scheduler finds a node", ""},
		{"a staging pod that runs", waiting(same).stagePod(runs), "its staging pod default/pav-staging has been running for 60m and has not made the volume available", "when it creates /pav/volume and ends", ""},
		{"a staging pod without image", waiting(same).stagePod(waits("ErrImagePull", "no such image")), "cannot pull its image: no such image", "when that problem is fixed", "kubectl edit pavprovisioner gold && kubectl -n default delete pod pav-staging"},
		{"a staging pod that nobody starts", with(waiting(func(p *tarnv1.PavStagePodStatus) { *p = tarnv1.PavStagePodStatus{} }), func(w *world) { w.view.Controller = nil }),
			"its pod has to be started, but has not started; no lease shows whether a tarn controller runs", "when tarn controller runs", ""},
		{"a stage whose provisioner was judged", unjudged(), "volume pvc-claim-uid is not staged on node n1, its pod has to be started, but has not started although tarn controller runs", "when the controller reconciles it", ""},
		{"a stage whose provisioner was judged a moment ago", with(unjudged(), func(w *world) { written(w.provisioner, time.Second) }), "volume pvc-claim-uid is not staged on node n1, its pod has to be started, which starts within moments", "", ""},
		{"a stage that pods hold", with(newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.DeletionTimestamp, g.Status.Pod = &began, tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodSucceeded, Message: "pods run on the volume: shop/other"}
		}), func(w *world) { w.view.Pod.Pod.Status.Conditions = nil }), "volume pvc-claim-uid is being unstaged on node n1, which waits: pods run on the volume: shop/other", "when the pods that run on it have ended", ""},
		{"a stage whose provisioner nobody judges", with(unjudged(), func(w *world) { w.provisioner.Status.Conditions = nil }),
			"is not staged on node n1: PavProvisioner gold has to be validated, but has not started although tarn controller runs", "when the controller reconciles it", ""},
		{"staging was refused", waiting(func(p *tarnv1.PavStagePodStatus) {
			*p = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodFailed, Message: "spec.volumeStaging: bad"}
		}), "is not staged on node n1: spec.volumeStaging: bad", "when the kubelet retries", "kubectl edit pavprovisioner gold"},
		{"staging has failed and is to be tried again", with(newWorld().bound().askedPod(), mount("MountVolume.SetUp failed: rpc error: code = Internal desc = Staging pod failed: no loop device")),
			"cannot be staged on node n1: Staging pod failed: no loop device", "when the kubelet retries", "kubectl edit pavprovisioner gold"},
		{"the class's Secret does not exist", with(with(newWorld().bound().askedPod(), secret), mount(`MountVolume.SetUp failed for volume "pvc-claim-uid" : fetching NodePublishSecretRef shop/keys failed: kubernetes.io/csi: failed to find the secret keys in the namespace shop with error: secrets "keys" not found`)),
			`secrets "keys" not found`, "when Secret shop/keys exists", "kubectl -n shop create secret generic keys --from-literal=password=VALUE"},
		{"the class's Secret has a wrong key", with(with(newWorld().bound().askedPod(), secret), mount("MountVolume.SetUp failed: rpc error: code = Internal desc = Staging pod failed: wrong key")),
			"wrong key; its Secret is shop/keys", "", "kubectl -n shop edit secret keys"},
		{"the other volume of its handle, which is staged", with(newWorld().bound().askedPod(), mount("MountVolume.SetUp failed: rpc error: code = Internal desc = "+shared)),
			"cannot be staged on node n1: " + shared, "when the pods that use the other volume have ended and it is unstaged, and then when the kubelet retries", ""},
		{"the other volume of its handle, which its stage has met", waiting(func(p *tarnv1.PavStagePodStatus) {
			*p = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodFailed, Message: shared}
		}), "is not staged on node n1: " + shared, "when the pods that use the other volume have ended", ""},
		{"the other volume of its handle, which its failed stage has met", newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Message = tarnv1.StageFailed, shared
		}), "could not be staged on node n1: " + shared, "when the pods that use the other volume have ended", ""},
		{"staging that is tried again", with(waiting(same).stagePod(waits("ContainerCreating", "")), mount(`MountVolume.MountDevice failed for volume "pvc-claim-uid" : rpc error: code = Internal desc = Staging pod failed: no loop device`)),
			"volume pvc-claim-uid could not be staged on node n1: Staging pod failed: no loop device; now the staging pod default/pav-staging is starting", "when its containers start", ""},
		{"staging that was not answered while it is under way", with(waiting(same).stagePod(runs), func(w *world) {
			mount(`MountVolume.MountDevice failed for volume "pvc-claim-uid" : rpc error: code = Internal desc = the staging pod runs`)(w)
			w.view.Pod.Events[0].LastTimestamp.Time = now
		}), "volume pvc-claim-uid is not staged on node n1: its staging pod default/pav-staging has been running for 60m", "when it creates /pav/volume and ends", ""},
		{"staging that begins while another volume cannot be mounted", with(waiting(same).stagePod(waits("ContainerCreating", "")), mount(`MountVolume.SetUp failed for volume "config" : configmap "x" not found`)),
			"volume pvc-claim-uid is not staged on node n1: the staging pod default/pav-staging is starting", "when its containers start", ""},
		{"a node agent that is not there", with(newWorld().bound().askedPod(), func(w *world) { w.view.Pod.Drivers = nil }), "driver gold is not registered on node n1: Tarn's node agent does not run there", "when the node agent runs on n1", "spec.nodeName=n1"},
		{"a node agent that does not answer the kubelet", with(newWorld().bound().askedPod(), mount(`MountVolume.MountDevice failed for volume "pvc-claim-uid" : rpc error: code = Unavailable desc = connection error: desc = "error reading server preface: closed"`)),
			"Tarn's node agent on node n1 does not respond", "when the kubelet retries", "kubectl -n shop get pod web -o yaml | kubectl replace --force -f -"},
		{"a node agent that answers no call", with(newWorld().bound().askedPod(), mount("MountVolume.SetUp failed: rpc error: code = DeadlineExceeded desc = context deadline exceeded")),
			"Tarn's node agent on node n1 does not respond", "when the kubelet retries", "kubectl -n shop get pod web -o yaml | kubectl replace --force -f -"},
		{"a node agent that does not answer", newWorld().bound().askedPod(), "Tarn's node agent on node n1 does not respond", "when the node agent responds", ""},
		{"a node that is gone", with(newWorld().bound().askedPod(), func(w *world) { w.view.Pod.NodeGone = true }), "its node n1 no longer exists", "when Kubernetes deletes the pod", ""},
		{"a node that is down", with(newWorld().bound().askedPod(), func(w *world) {
			w.view.Pod.Node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
		}), "its node n1 is not ready", "when its kubelet responds again", ""},
		{"a provisioner that is gone", with(newWorld().bound().askedPod(), func(w *world) { w.volumeView.Provisioner, w.view.Pod.Drivers = nil, nil }), "PavProvisioner gold no longer exists", "", ""},
		{"another driver that its node does not have", with(newWorld().bound().askedPod(), func(w *world) {
			w.volumeView.Provisioner, w.volume.Spec.CSI.Driver = nil, "csi.example.org"
		}), "driver csi.example.org is not registered on node n1", "when the driver's pod runs on n1", ""},
		{"a stage that has failed", newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Message = tarnv1.StageFailed, "/pav/volume is missing"
		}), "volume pvc-claim-uid could not be staged on node n1: /pav/volume is missing", "when the kubelet retries", "kubectl edit pavprovisioner gold"},
		{"containers of a pod that is new", newWorld().bound().askedPod(func(p *corev1.Pod) {
			p.CreationTimestamp = *ahead(time.Second - answerTime)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
		}), "pod shop/web is starting: its containers are about to start", "within moments", ""},
		{"containers that nothing is known of", newWorld().bound().askedPod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
		}), "its containers have not started on node n1, and no object that explain can read says why", "", ""},
		{"containers of which the kubelet has said something", with(newWorld().bound().askedPod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
		}), func(w *world) {
			w.view.Pod.Events = []corev1.Event{{Reason: "Pulling", Message: "Pulling image web:1", LastTimestamp: began}}
		}), "its containers have not started on node n1; the kubelet's last message: Pulling image web:1", "when what the kubelet reported last", ""},
		{"nothing but its own end, while its claim waits for that", with(newWorld().bound().askedPod(runs, func(p *corev1.Pod) { p.DeletionTimestamp = &began }), func(w *world) {
			w.claim.DeletionTimestamp, w.claim.Finalizers = &began, []string{claimProtection}
		}), "pod shop/web is Terminating: its containers have not ended", "when its containers have ended", ""},
		{"a volume by hand without Static", with(newWorld().bound().askedPod(), func(w *world) {
			w.volume.Annotations, w.provisioner.Spec.ProvisioningModes = nil, []pavv1.ProvisioningMode{pavv1.ModeDynamic}
		}), "stages no volumes written by hand", "when it has", `"value":"Static"`},
		{"a volume without Static that was restored from a backup", with(newWorld().bound().askedPod(), func(w *world) {
			w.volume.Annotations = map[string]string{tarnv1.AnnotationRecord: "uid-of-old", volume.AnnProvisionedBy: "shop"}
			w.provisioner.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeDynamic}
		}), "stages no volumes written by hand, and one without its PavVolume counts as such", "when it has", `"value":"Static"`},
		{"another driver's mount", with(newWorld().bound().askedPod(), func(w *world) {
			w.volumeView.Provisioner = nil
			mount("disk is attached elsewhere")(w)
		}), "cannot mount its volumes: disk is attached elsewhere", "when the kubelet retries", ""},
		{"an earlier stage that does not end", newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) { g.DeletionTimestamp = &began }), "is being unstaged on node n1", "when its pod has ended", ""},
		{"a volume that was lost under it", newWorld().bound().askedPod(runs).staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Number: 1, Reason: tarnv1.ReasonServerDied, Message: "the server died", Time: began}
		}), "volume pvc-claim-uid is lost on node n1: the server died", "when its next staging pod", ""},
		{"a volume that was lost under it, which its provisioner leaves at that", newWorld().bound().askedPod(runs).staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Number: 1, Reason: tarnv1.ReasonServerDied, Message: "the server died", Time: began}
			g.Status.Pod.Recovery = tarnv1.RecoveryNone
		}), "volume pvc-claim-uid is lost on node n1: the server died", "when the pods that use it are restarted, as volumeStaging.recovery is None", ""},
		{"a volume that was lost under it, after which who made it makes it again", newWorld().bound().askedPod(runs).staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Number: 1, Reason: tarnv1.ReasonServerDied, Message: "the server died", Time: began}
			g.Status.Pod.Recovery = tarnv1.RecoveryRestartConsumers
		}), "volume pvc-claim-uid is lost on node n1: the server died", "then Tarn evicts the pods that use it, if a controller creates them again", ""},
		{"a volume that was lost under it and cannot be staged again", newWorld().bound().askedPod(runs).staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Message = tarnv1.StageLost, "Staging pod failed: no disk"
			g.Status.Node.Loss = &tarnv1.StageLoss{Number: 1, Failed: 3, Reason: tarnv1.ReasonServerDied, Message: "the server died", Time: began}
		}), "volume pvc-claim-uid is lost on node n1: the server died; staging it again failed, attempt 3: Staging pod failed: no disk", "when its next staging pod", ""},
		{"its eviction, after its volume was lost", with(newWorld().bound().askedPod(runs).staged(refusedEviction), func(w *world) { w.view.Pod.Pod.UID = "kept" }),
			"volume pvc-claim-uid was lost on node n1 and is available again, but not for pod shop/web, which is to be evicted and cannot be: budget b needs 1", "when it is evicted, which Tarn retries", ""},
		{"its own image", newWorld().bound().askedPod(waits("ErrImagePull", "no such image"), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
		}), "its volumes are mounted, but cannot pull its image: no such image", "", ""},
		{"its own end", newWorld().bound().askedPod(runs, func(p *corev1.Pod) { p.DeletionTimestamp = &began }), "pod shop/web is Terminating: its containers have not ended", "when its containers have ended", ""},
		{"its own end, which the unstaging of its volume holds up", newWorld().bound().askedPod(runs, stops, func(p *corev1.Pod) { p.DeletionTimestamp = &began }).staged(func(g *tarnv1.PavStage) {
			g.DeletionTimestamp = &began
			g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodUnstaging, UnstageAttempts: 2, Message: "busy", NextAttemptTime: ahead(40e9)}
		}), "pod shop/web is Terminating: volume pvc-claim-uid cannot be unstaged on node n1, attempt 2: busy", "unstaging attempt 3 in 40s", ""},
		{"its own end, which nothing but a finalizer holds up", newWorld().bound().askedPod(runs, stops, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &began, ptr.To[int64](0), []string{"example.org/audit"}
		}), "pod shop/web is Terminating: finalizer example.org/audit keeps it", "when its owner removes it", "kubectl -n shop patch pod web"},
		{"its own end before it had a node", newWorld().bound().askedPod(unscheduled, func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &began, []string{"example.org/audit"} }),
			"pod shop/web is Terminating: finalizer example.org/audit keeps it", "when its owner removes it", "kubectl -n shop patch pod web"},
		{"its own end, which the kubelet holds up", newWorld().bound().askedPod(runs, stops, func(p *corev1.Pod) { p.DeletionTimestamp = &began }),
			"pod shop/web is Terminating: its containers have ended, and the kubelet has not unmounted its volumes", "when the kubelet has unmounted its volumes", ""},
	} {
		t.Run(c.name, c.check)
	}
}

// The node agent may begin to stage before the kubelet asks, on one node at a time.
func TestAPodSaysWhatItsStageThatIsBegunAheadWaitsFor(t *testing.T) {
	stage := func(change func(*tarnv1.PavStage)) *world {
		return newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: "shop", Name: "web", UID: "pod-uid"}
			g.Status.Node.Phase = ""
			change(g)
		})
	}
	for _, c := range []answer{
		{"its node agent", stage(func(*tarnv1.PavStage) {}), "Tarn's node agent on node n1 does not respond", "when the node agent responds", ""},
		{"its node agent, for moments", stage(func(g *tarnv1.PavStage) { g.CreationTimestamp = *ahead(-time.Second) }),
			"volume pvc-claim-uid is about to be staged on node n1", "when the node agent responds", ""},
		{"a stage of another node", stage(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase = tarnv1.StageWaiting
			g.Status.Pod.Message = tarnv1.StageWaits + "stage-2, which was staged ahead for pod shop/other on node n2"
		}), "volume pvc-claim-uid is not staged on node n1: waiting for PavStage stage-2, which was staged ahead for pod shop/other on node n2",
			"when that stage has ended, or its kubelet has requested it", ""},
	} {
		t.Run(c.name, c.check)
	}
}

// An answer about a claim or a volume agrees with that about a waiting pod. It never says that the
// volume is staged when it is not.
func TestOnlyWhatIsStagedIsCalledSo(t *testing.T) {
	unready := func(change func(*tarnv1.PavStage)) *world {
		return newWorld().bound().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase = tarnv1.StageWaiting
			g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodRunning, Namespace: "default", Name: "pav-staging"}
			change(g)
		}).stagePod(waits("ErrImagePull", "no such image"))
	}
	failed := func(g *tarnv1.PavStage) {
		g.Status.Node.Phase, g.Status.Node.Message = tarnv1.StageFailed, "no loop device"
	}
	ends := func(g *tarnv1.PavStage) {
		g.DeletionTimestamp, g.Status.Node.Phase = &began, tarnv1.StageStaged
		g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodUnstaging, UnstageAttempts: 2, Message: "busy", NextAttemptTime: ahead(time.Minute)}
	}
	held := func(g *tarnv1.PavStage) {
		g.DeletionTimestamp, g.Status.Node.Phase = &began, tarnv1.StageLost
		g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodRunning, Message: "pod shop/web runs on it"}
	}
	for name, c := range map[string]struct {
		of   *world
		want string
	}{
		"one that is lost and held": {unready(held), "volume pvc-claim-uid is being unstaged on node n1, which waits: pod shop/web runs on it"},
		"claim":                     {unready(func(*tarnv1.PavStage) {}), "claim shop/data is Bound: volume pvc-claim-uid is not staged on node n1: the staging pod default/pav-staging cannot pull its image"},
		"volume":                    {unready(func(*tarnv1.PavStage) {}).askedVolume(), "volume pvc-claim-uid is Bound: volume pvc-claim-uid is not staged on node n1: the staging pod default/pav-staging cannot pull its image"},
		"one that failed":           {unready(failed), "volume pvc-claim-uid could not be staged on node n1: no loop device"},
		"one that ends":             {unready(ends), "volume pvc-claim-uid cannot be unstaged on node n1, attempt 2: busy"},
	} {
		e := chain(c.of.view)
		if !strings.Contains(e.Verdict, c.want) || e.Healthy || strings.Contains(e.Verdict, "; staged on") {
			t.Errorf("%s: %q, healthy %t; want %q in it", name, e.Verdict, e.Healthy, c.want)
		}
	}
	for name, of := range map[string]*world{"a claim": newWorld().bound().staged(refusedEviction), "a volume": newWorld().bound().staged(refusedEviction).askedVolume()} {
		if e := chain(of.view); e.Healthy || !strings.Contains(e.Verdict, "but not for pod shop/web, which is to be evicted and cannot be: budget b needs 1") {
			t.Errorf("%s of a pod that cannot be evicted: %q, healthy %t", name, e.Verdict, e.Healthy)
		}
	}
	if e := chain(newWorld().bound().askedPod(runs).staged(refusedEviction).view); !e.Healthy {
		t.Errorf("a pod beside one that cannot be evicted: %q", e.Verdict)
	}
	elsewhere := unready(func(*tarnv1.PavStage) {}).askedPod(runs, func(pod *corev1.Pod) { pod.Spec.NodeName = "n2" })
	if e := chain(elsewhere.view); !e.Healthy || strings.Contains(e.Verdict, "staged on") {
		t.Errorf("a pod that runs on another node: %q, healthy %t", e.Verdict, e.Healthy)
	}
	elsewhere.volumeView.Stages[0].Stage.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageLost, Loss: &tarnv1.StageLoss{Message: "the server died", Time: began}}
	if e := chain(elsewhere.view); !e.Healthy {
		t.Errorf("a pod that runs on another node than where the volume was lost: %q", e.Verdict)
	}
}

// refusedEviction makes a stage lost and available again, but not for a pod that a disruption
// budget keeps.
func refusedEviction(g *tarnv1.PavStage) {
	g.Status.Node.Phase, g.Status.Pod.Recovery = tarnv1.StageStaged, tarnv1.RecoveryRestartConsumers
	g.Status.Pod.Evictions = []tarnv1.StageEviction{{PodUID: "kept", Namespace: "shop", Name: "web", Refusals: 2, Message: "budget b needs 1"}}
}
