package provision

import (
	"k8s.io/apimachinery/pkg/api/meta"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// await waits for a pod, and reports what the pod waits for if that is unusual. A pod that cannot
// be deleted blocks the claim until a user checks its node, so the claim gets a Warning.
func await(v *View) Plan {
	o := v.Observed
	p := Plan{Act: ActNone, Next: o.CheckAt}
	status := v.Record.Status.DeepCopy()
	reason, message := reasonPodWaits, o.Message
	if message == "" {
		if waitedFor(v) == "" || o.State != steppod.PodStarting && o.State != steppod.PodRunning {
			return p
		}
		reason, message = reasonInProgress, underWay(status.Attempts, status.Phase) // it does not wait any more
	}
	if say(status, v.Record, reason, message) {
		p.Act, p.Status = ActStatus, status
		if o.State == steppod.PodGoing && o.Message != "" {
			p.Warning, p.Cause = message, string(steppod.PodGoing)
		}
		p.WaitAction, p.WaitNote = o.WaitEvent(v.Pod)
	}
	return p
}

// waitedFor is what the pod was last seen to wait for, empty if that was nothing unusual.
func waitedFor(v *View) string {
	c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionProvisioned)
	if c == nil || c.Reason != reasonPodWaits {
		return ""
	}
	return c.Message
}

// podFailure words a pod's failure as the original provisioner does.
func podFailure(step tarnv1.Step, v *View) *steppod.StepError {
	o := v.Observed.After(waitedFor(v))
	message := o.Message
	if o.Reason == steppod.ReasonPodFailed {
		message = map[tarnv1.Step]string{tarnv1.StepValidation: "Validation", tarnv1.StepCreation: "Creation"}[step] + " pod failed: " + message
	}
	return &steppod.StepError{Step: step, Reason: o.Reason, Message: message}
}
