package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// says adds an Event of the kubelet about a world's pod, newer than all others.
func says(w *world, reason, message string) *world {
	w.view.Pod.Events = append(w.view.Pod.Events, corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: began})
	return w
}

// A pod has its volumes if its kubelet already creates its sandbox.
func TestAPodThatCannotHaveItsSandboxDoesNotWaitForItsVolumes(t *testing.T) {
	const sandbox, mount = "Failed to create pod sandbox: no network", `MountVolume.SetUp failed for volume "pvc-claim-uid" : desc = busy`
	const want = "its containers have not started on node n1; the kubelet's last message: " + sandbox
	staged := func() *world { return newWorld().bound().askedPod().staged(there) }
	foreignDriver := func() *world {
		return with(newWorld().bound().askedPod(), func(w *world) { w.volumeView.Provisioner = nil })
	}
	for _, c := range []answer{
		{"nothing else was said", says(staged(), noSandbox, sandbox), want, "when the kubelet retries; last tried 60m ago", ""},
		{"a mount had failed before", says(says(staged(), "FailedMount", mount), noSandbox, sandbox), want, "when the kubelet retries", ""},
		{"a mount of another driver had failed before", says(says(foreignDriver(), "FailedMount", mount), noSandbox, sandbox), want, "when the kubelet retries", ""},
		{"a mount failed since", says(says(foreignDriver(), noSandbox, sandbox), "FailedMount", mount), "the kubelet on node n1 cannot mount its volumes: " + mount, "when the kubelet retries", ""},
	} {
		t.Run(c.name, c.check)
	}
}

// The same holds for step pods.
func TestAPodOfTarnsOwnGoesByWhatItsKubeletHasSaidLast(t *testing.T) {
	const mount, sandbox, pull = "MountVolume.SetUp failed: no such folder", "Failed to create pod sandbox: no network", "Pulling image large:1"
	making := func(said ...string) *world {
		w := newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, deadline(7200))
		for i := 0; i < len(said); i += 2 {
			w.volumeView.Step.Events = append(w.volumeView.Step.Events, corev1.Event{Type: corev1.EventTypeWarning, Reason: said[i], Message: said[i+1], LastTimestamp: began})
		}
		return w
	}
	const does, next = "the creation pod default/pav-creation does not start: ", "when its containers start"
	for _, c := range []answer{
		{"a mount failed", making("FailedMount", mount), does + mount, next, ""},
		{"a mount failed, and its image is pulled by now", making("FailedMount", mount, "Pulling", pull), "the creation pod default/pav-creation is starting", next, ""},
		{"a sandbox failed, and its image is pulled by now", making(noSandbox, sandbox, "Pulling", pull), "the creation pod default/pav-creation is starting", next, ""},
		{"a mount failed, and then its sandbox", making("FailedMount", mount, noSandbox, sandbox), does + sandbox, next, ""},
		{"a sandbox failed, and then a mount", making(noSandbox, sandbox, "FailedMount", mount), does + mount, next, ""},
		{"a volume could not be attached", making("FailedAttachVolume", "AttachVolume.Attach failed"), does + "AttachVolume.Attach failed", next, ""},
	} {
		t.Run(c.name, c.check)
	}
	if e := chain(making("FailedMount", mount, "Pulling", pull).view); !told(e, Pod, pull) || told(e, Pod, mount) {
		t.Errorf("of the pod it does not say what its kubelet has said last: %+v", e.Links)
	}
}

// A pod that has its volumes can start, though its claim is being deleted.
func TestAPodThatHasItsVolumesDoesNotWaitForTheEndOfItsClaim(t *testing.T) {
	mounted := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	}
	image := waits("ErrImagePull", "no such image")
	for _, c := range []answer{
		{"it has no image", deleted(newWorld().bound().askedPod(image, mounted), claimProtection), "its volumes are mounted, but cannot pull its image: no such image", "", ""},
		{"it has no volumes", deleted(newWorld().bound().askedPod(), claimProtection), "claim shop/data is being deleted, so no pod that uses it can start", "when a new claim of that name exists", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestOfAPodWhoseStagesCannotBeReadNoneIsCalledMissing(t *testing.T) {
	stages := Object{Kind: pavStage}
	for name, w := range map[string]*world{
		"long ago":     hides(newWorld().bound().askedPod(), stages),
		"a moment ago": hides(newWorld().bound().askedPod(func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now) }), stages),
	} {
		e := chain(w.view)
		if strings.Contains(e.Verdict, "node agent") || strings.Contains(e.Verdict, "about to be staged") || e.Healthy {
			t.Errorf("%s: it says %q, healthy %t", name, e.Verdict, e.Healthy)
		}
		for _, l := range e.Links {
			if l.Object.Kind == pavStage && l.State != notRead {
				t.Errorf("%s: it tells of a stage that nobody has seen: %+v", name, l)
			}
		}
	}
}

func TestANodeAgentHasAMomentToLookAtWhatAPodHasMade(t *testing.T) {
	for name, c := range map[string]struct {
		ended, told time.Duration // ago
		want        string
	}{
		"just now":                    {time.Second, time.Second, "its pod has ended, and the node agent is about to read /pav/volume"},
		"for long":                    {time.Minute, time.Minute, "its pod has ended, and the node agent does not respond"},
		"for long, and told just now": {time.Minute, time.Second, "its pod has ended, and the node agent is about to read /pav/volume"},
	} {
		w := newWorld().bound().askedPod().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase = tarnv1.StageWaiting
			g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodSucceeded, Namespace: "default", Name: "pav-staging"}
		}).stagePod(stops, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = *ahead(-c.ended) })
		written(w.volumeView.Stages[0].Stage, c.told)
		if e := chain(w.view); !strings.Contains(e.Verdict, c.want) {
			t.Errorf("%s: got %q, want %q in it", name, e.Verdict, c.want)
		}
	}
}

func TestTheFinalizerOfAJobIsNotOfferedToBeTakenOff(t *testing.T) {
	answer{"", newWorld().bound().askedPod(runs, stops, func(p *corev1.Pod) {
		grace := int64(0)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &began, &grace, []string{"batch.kubernetes.io/job-tracking"}
	}), "finalizer batch.kubernetes.io/job-tracking keeps it; it belongs to Kubernetes' Job controller", "when its owner removes it", ""}.check(t)
}

func TestAPodThatIsHeldBackOrHasFailedSaysSo(t *testing.T) {
	gated := func(p *corev1.Pod) {
		unscheduled(p)
		p.Status.Conditions[0].Reason, p.Status.Conditions[0].Message = corev1.PodReasonSchedulingGated, "Scheduling is blocked due to non-empty scheduling gates"
	}
	failed := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, message
		}
	}
	const gates, never = "when its scheduling gates are removed", "never: a failed pod is not started again"
	waits := func() *world { return newWorld().bound().asApp(tarnv1.ReasonWaitingForPods, "0 of 1 pods are ready") }
	for _, c := range []answer{
		{"it is gated", newWorld().bound().askedPod(gated), "pod shop/web is not scheduled: it is held back by scheduling gates", gates, ""},
		{"that of an App is gated", waits().appPod(gated), "app shop/web is not Ready: pod shop/web-1: it is held back by scheduling gates", gates, ""},
		{"one of Tarn's is gated", newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, gated, deadline(7200)),
			"the creation pod default/pav-creation is held back by scheduling gates", "it times out", "kubectl edit pavprovisioner gold"},
		{"it was evicted", newWorld().bound().askedPod(failed("Evicted", "The node was low on resource: memory.")), "pod shop/web is Failed: Evicted: The node was low on resource: memory.", never, ""},
		{"its kubelet refused it", newWorld().bound().askedPod(failed("OutOfcpu", "")), "pod shop/web is Failed: OutOfcpu", never, ""},
		{"its container failed", newWorld().bound().askedPod(stops), "pod shop/web is Failed: container c exited with 143", never, ""},
		{"nobody says why it failed", newWorld().bound().askedPod(failed("", "")), "pod shop/web is Failed: it has failed, and no object that explain can read says why", never, ""},
		{"that of an App was evicted", waits().appPod(failed("Evicted", "low on memory")), "app shop/web is not Ready: pod shop/web-1: Evicted: low on memory", never, ""},
	} {
		t.Run(c.name, c.check)
	}
}
