package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// since returns Since of the last link of a kind, nil if that is not set.
func since(e *Explanation, kind Kind) *time.Time {
	for i := len(e.Links) - 1; i >= 0; i-- {
		if e.Links[i].Object.Kind == kind {
			return e.Links[i].Since
		}
	}
	return nil
}

func TestEachLinkSaysSinceWhenItStandsAsItDoes(t *testing.T) {
	at := *ahead(-90 * time.Second) // everything else began an hour ago
	over := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: at}}
	}
	pod := func(phase corev1.PodPhase, c corev1.ContainerStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Phase, p.Status.ContainerStatuses = phase, []corev1.ContainerStatus{c} }
	}
	scheduled := func(status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: at}}
		}
	}
	for _, c := range []struct {
		name string
		of   *world
		kind Kind
		want *time.Time
	}{
		{"a claim that was made", newWorld(), Claim, &began.Time},
		{"a claim that is to go", with(newWorld().bound(), func(w *world) { w.claim.DeletionTimestamp = &at }), Claim, &at.Time},
		{"a claim that was lost", with(newWorld().bound(), func(w *world) {
			w.claim.Status.Phase, w.volumeView.Volume = corev1.ClaimLost, nil
			w.claimView.Events = []corev1.Event{{Reason: "ClaimLost", LastTimestamp: at}}
		}), Claim, &at.Time},
		{"a claim that is Bound, which no object tells", newWorld().bound(), Claim, nil},
		{"a volume in its phase", with(newWorld().bound().askedVolume(), func(w *world) { w.volume.Status.LastPhaseTransitionTime = &at }), Volume, &at.Time},
		{"a volume whose phase is older than that was noted", newWorld().bound().askedVolume(), Volume, nil},
		{"a volume that is to go", with(newWorld().bound(), func(w *world) { w.volume.DeletionTimestamp = &at }), Volume, &at.Time},
		{"a provisioner that is refused", with(newWorld(), func(w *world) {
			w.provisioner.Status.Conditions[0] = metav1.Condition{Type: pavv1.ConditionAccepted, Status: metav1.ConditionFalse, LastTransitionTime: at}
		}), pavProvisioner, &at.Time},
		{"an attempt that has failed", with(newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk"), func(w *world) {
			w.record.Status.LastError.Time = at
		}), pavVolume, &at.Time},
		{"a volume that was lost", newWorld().bound().staged(func(g *tarnv1.PavStage) {
			g.Status.Node.Phase, g.Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Time: at}
		}), pavStage, &at.Time},
		{"a lease that ran out", with(newWorld(), func(w *world) { w.view.Controller.Spec.RenewTime = ptr.To(metav1.NewMicroTime(at.Time)) }), lease, &at.Time},
		{"a pod without node", newWorld().askedPod(unscheduled, scheduled(corev1.ConditionFalse)), Pod, &at.Time},
		{"a pod that starts", newWorld().askedPod(scheduled(corev1.ConditionTrue)), Pod, &at.Time},
		{"a pod that runs", newWorld().askedPod(pod(corev1.PodRunning, corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}})), Pod, &at.Time},
		{"a pod that crashes", newWorld().askedPod(pod(corev1.PodRunning, corev1.ContainerStatus{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: crashing}}, LastTerminationState: over(1),
		})), Pod, &at.Time},
		{"a pod that has failed", newWorld().askedPod(pod(corev1.PodFailed, corev1.ContainerStatus{State: over(1)})), Pod, &at.Time},
		{"a pod that has ended", newWorld().askedPod(pod(corev1.PodSucceeded, corev1.ContainerStatus{State: over(0)})), Pod, &at.Time},
		{"a pod that has failed before it had a container", newWorld().askedPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), Pod, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := chain(c.of.view)
			got := since(e, c.kind)
			if (got == nil) != (c.want == nil) || got != nil && !got.Equal(*c.want) {
				t.Errorf("since %v, want %v: %+v", got, c.want, e.Links)
			}
		})
	}
}
