package explain

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// doomed deletes a world's volume, which finalizers keep.
func doomed(w *world, finalizers ...string) *world {
	w.volume.DeletionTimestamp, w.volume.Finalizers = &began, finalizers
	return w
}

func TestAVolumeThatIsToGoIsToldOfWhoeverUsesIt(t *testing.T) {
	const has = "its volume pvc-claim-uid is being deleted, and still exists only because claim shop/data uses it"
	next := "when the claim is gone; the volume can be used until then"
	for name, c := range map[string]struct {
		of                     *world
		want, wantNext, wantOf string
	}{
		"its claim":            {doomed(newWorld().bound(), volumeProtection), "claim shop/data is Bound: " + has, next, "when it is deleted, its data is deleted too, by policy Delete; to keep it, first: kubectl patch pv"},
		"a pod that runs":      {doomed(newWorld().bound().askedPod(runs), volumeProtection), "pod shop/web is running: claim shop/data: " + has, next, "when it is deleted, its data is deleted too, by policy Delete"},
		"an app that is Ready": {doomed(newWorld().bound().asApp("", ""), volumeProtection), "app shop/web is Ready: claim shop/data: " + has, next, "when it is deleted, its data is deleted too, by policy Delete"},
		"its claim, where a finalizer keeps the volume too": {doomed(newWorld().bound(), "external-attacher/csi.example.org"),
			"and still exists only because finalizer external-attacher/csi.example.org keeps it", "when its owner removes it", "it belongs to the attacher of CSI driver csi.example.org"},
		"its claim, where somebody's finalizer alone keeps the volume": {doomed(newWorld().bound(), "example.org/backup"),
			"and still exists only because finalizer example.org/backup keeps it", "when its owner removes it", "example.org"},
	} {
		t.Run(name, func(t *testing.T) {
			e := chain(c.of.view)
			if e.Healthy || !strings.Contains(e.Verdict, c.want) || e.next() != c.wantNext {
				t.Errorf("healthy %t: %q, next %q; want %q, next %q", e.Healthy, e.Verdict, e.next(), c.want, c.wantNext)
			}
			if !slices.ContainsFunc(e.Links, func(l Link) bool { return strings.Contains(l.Message, c.wantOf) }) {
				t.Errorf("no link says %q: %+v", c.wantOf, e.Links)
			}
			if all := e.commands(); len(all) > 0 {
				t.Errorf("who uses the volume is told to end that: %q", all)
			}
		})
	}
}

func TestAVolumeThatIsToGoKeepsNobody(t *testing.T) {
	for name, c := range map[string]struct {
		of   *world
		want string
	}{
		"a pod that finds no node":     {newWorld().bound().askedPod(unscheduled), "pod shop/web is not scheduled: the scheduler finds no node for it: 0/1 nodes fit"},
		"a pod that is to end":         {newWorld().bound().askedPod(runs, func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &began, ptr.To[int64](1) }), "pod shop/web is Terminating: its containers have not ended"},
		"an app whose pod has no node": {newWorld().bound().asApp(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready").appPod(unscheduled), "app shop/web is not Ready: pod shop/web-1: the scheduler finds no node for it: 0/1 nodes fit"},
	} {
		t.Run(name, func(t *testing.T) {
			if e := chain(doomed(c.of, volumeProtection).view); e.Verdict != c.want {
				t.Errorf("got %q, want %q", e.Verdict, c.want)
			}
		})
	}
}

// grown makes a world's claim request more. Only the expansion on the next pod's node is left.
func grown(w *world) *world {
	w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	w.claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
	return w
}

// mountFails adds the kubelet's Event that it cannot mount a volume for a world's pod.
func mountFails(w *world, message string) *world {
	w.view.Pod.Events = []corev1.Event{{Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: message, LastTimestamp: began}}
	return w
}

func TestAClaimThatGrowsOrWaitsForItsPodIsNotWhatThePodWaitsFor(t *testing.T) {
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &began, ptr.To[int64](1) }
	crashed := func(p *corev1.Pod) {
		runs(p)
		waits("CrashLoopBackOff", "back-off 40s")(p)
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	}
	there := func(*tarnv1.PavStage) {}
	ending := func(w *world) *world {
		w.claim.DeletionTimestamp, w.claim.Finalizers = &began, []string{claimProtection}
		return w
	}
	const grows, next = "it is to be expanded from 1Gi to 2Gi", "when the scheduler finds a node; "
	waiting := func(w *world) *world { return w.asApp(tarnv1.ReasonResizing, "volume data is growing") }
	for _, c := range []answer{
		{"a pod that finds no node", grown(newWorld().bound().askedPod(unscheduled)), "pod shop/web is not scheduled: the scheduler finds no node for it: 0/1 nodes fit", next, ""},
		{"a pod that is to end", grown(newWorld().bound().askedPod(runs, terminating)), "pod shop/web is Terminating: its containers have not ended", "", ""},
		{"a pod with nothing else", grown(newWorld().bound().askedPod(runs)), "pod shop/web is running: claim shop/data: " + grows, "", ""},
		{"a pod whose kubelet grows it first", grown(newWorld().bound().askedPod().staged(there)), "pod shop/web is starting: claim shop/data: " + grows, "", ""},
		{"a pod whose kubelet cannot grow it first", mountFails(grown(newWorld().bound().askedPod().staged(there)), `MountVolume.MountDevice failed while expanding volume for volume "pvc-claim-uid" : no room`),
			"pod shop/web is starting: claim shop/data: " + grows, "", ""},
		{"a pod whose kubelet can do nothing with another", mountFails(grown(newWorld().bound().askedPod().staged(there)), `MountVolume.SetUp failed for volume "lacks" : configmap "none" not found`),
			`the kubelet on node n1 cannot mount its volumes: MountVolume.SetUp failed for volume "lacks"`, "when the kubelet retries", ""},
		{"a pod whose volume cannot be staged either", grown(newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Pod = tarnv1.StageWaiting, tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodRunning, Namespace: "default", Name: "pav-staging"}
		})), "is not staged on node n1: its staging pod has not created /pav/volume yet", "", ""},
		{"a pod whose volume is there", grown(newWorld().bound().askedPod(waits("ErrImagePull", "no such image"), func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue})
		})), "no such image", "", ""},
		{"an app whose pod's kubelet grows it first", grown(newWorld().bound().asApp(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready").appPod().staged(there)), "app shop/web is not Ready: claim shop/data: ", "", ""},
		{"an app whose pod does not end, which is to give way", grown(newWorld().bound().asApp(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready").appPod(runs, terminating)), "its containers have not ended", "", ""},
		{"an app whose pod has no node", grown(newWorld().bound().asApp(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready").appPod(unscheduled)),
			"app shop/web is not Ready: pod shop/web-1: the scheduler finds no node for it: 0/1 nodes fit", next, ""},
		{"an app with nothing else", grown(waiting(newWorld().bound())), "app shop/web is not Ready: claim shop/data: its volume has been expanded", "when a pod that uses the claim is started", ""},
		{"an app whose only pod is to end", grown(waiting(newWorld().bound()).appPod(runs, terminating)), "app shop/web is not Ready: claim shop/data: ", "", ""},
		{"an app that is Ready", grown(newWorld().bound().asApp("", "")), "app shop/web is Ready: claim shop/data: its volume has been expanded", "when a pod that uses the claim is started", ""},
		{"a pod that crashes on a claim's end", ending(newWorld().bound().askedPod(crashed)), "pod shop/web is container c waits: its volumes are mounted, but keeps crashing: back-off 40s", "", ""},
		{"a pod that begins on a claim's end", ending(newWorld().bound().askedPod(unscheduled)), "pod shop/web is not scheduled: claim shop/data is being deleted, so no pod that uses it can start", "", ""},
	} {
		t.Run(c.name, c.check)
	}
	t.Run("a pod that has succeeded on a claim's end", func(t *testing.T) {
		e := chain(ending(newWorld().bound().askedPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })).view)
		if want := "pod shop/web is Succeeded: on node n1; it has ended; it waits for nothing"; e.Verdict != want || !e.Healthy {
			t.Errorf("got %q, healthy %t; want %q", e.Verdict, e.Healthy, want)
		}
	})
}
