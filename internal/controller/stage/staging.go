package stage

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

func planBegin(v View, now time.Time) Plan {
	if unanswered(v.Stage) {
		return Plan{} // no subject of the stage was read
	}
	status := v.Stage.Status.Pod
	switch why := verdict(v); {
	case v.Missing != "" && v.Stage.Awaited():
		return Plan{Actions: []action.Action{action.Delete{Object: v.Stage, Unchanged: true}}} // it was a head start: the kubelet's call reports the cause
	case why == unknown:
		status.Message = fmt.Sprintf("waiting until PavProvisioner %q has been checked", v.Stage.Spec.Provisioner.Name)
		return Plan{Actions: write(v, status)}
	case why != usable:
		return failStaging(v, why)
	case v.Unfit != nil:
		return failStaging(v, v.Unfit.Message)
	case v.Rival != "":
		return failStaging(v, shared(v.Rival))
	case v.Awaited != "":
		status.Message = v.Awaited
		return Plan{Actions: write(v, status), LookAt: now.Add(aheadLook)}
	case v.Validation != nil && v.Validation.Pod != nil:
		return startValidation(v)
	}
	p := startStaging(v, now)
	for i := range v.Unsent {
		p.Actions = slices.Insert(p.Actions, i, action.Action(action.Delete{Object: &v.Unsent[i], Unchanged: true}))
	}
	return p
}

// shared explains that a volume cannot be staged beside its rival.
func shared(rival string) string {
	return rival + ": " + tarnv1.StageShared + "; give each volume a volumeHandle of its own, or use one claim for both"
}

// startStaging writes the intent, then creates the pod. It writes the intent even if it is
// already there. If the cache is stale, the API server rejects that write, and no pod is
// created for a stage that has changed.
func startStaging(v View, now time.Time) Plan {
	pod, was := v.Prepared.Pod, v.Stage.Status.Pod
	_, attempt := due(v, now)
	status := tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodStarting, Namespace: pod.Namespace, Name: pod.Name, Staged: true,
		Attempt: attempt, Recovery: v.Prepared.Recovery, StartTime: &metav1.Time{Time: now.Truncate(time.Second)},
		Restarts: was.Restarts, LossTold: was.LossTold, ReboundTold: was.ReboundTold, Evictions: was.Evictions,
		ClaimDeleted: was.ClaimDeleted,
		Expansion:    was.Expansion, // the node has requested a new one in place of a running one
	}
	if was.Phase == tarnv1.StagePodGone {
		status.Restarts = restarts(was, now)
	}
	actions := []action.Action{v.record(status)}
	if attempt == firstAttempt {
		actions = append(actions, ConfirmSole{Volume: v.Volume})
	}
	actions = append(actions, action.StartPod{Pod: pod})
	if attempt == firstAttempt && v.Prepared.Warning != "" {
		actions = append(actions, v.warn(ReasonOptionsUnread, v.Prepared.Warning)...)
	}
	return Plan{Actions: actions}
}

// unstarted reports whether the status names a staging pod that was never seen. A controller
// that died before it created the pod leaves that.
func unstarted(v View) bool {
	return v.Pod == nil && !isStaged(v.Stage) && v.Stage.Status.Pod.UID == ""
}

// planFollow mirrors the staging pod. If the pod vanished before the volume was available, the
// stage fails. A second pod would find its /pav used, and scripts that begin with mkdir
// /pav/volume would fail. The kubelet asks again and gets a new stage. A provisioner that is no
// longer accepted, or is being deleted, keeps its stages.
func planFollow(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	switch {
	case v.Refused != nil && v.Refused.Reason == steppod.ReasonHandleTaken:
		return giveWay(v, v.Refused.Message)
	case v.Refused != nil:
		return failStaging(v, v.Refused.Message)
	case v.Pod == nil && isStaged(v.Stage) && status.Phase == tarnv1.StagePodGone:
		return Plan{} // already reported; the node agent's write is next
	case v.Pod == nil && isStaged(v.Stage):
		return podGone(v, fmt.Sprintf("staging pod %s/%s was deleted", status.Namespace, status.Name))
	case v.Pod == nil && status.UID != "":
		return failStaging(v, fmt.Sprintf("staging pod %s/%s disappeared before the volume was staged", status.Namespace, status.Name))
	case v.Pod == nil && v.Missing != "":
		return failStaging(v, "the staging pod cannot be started: "+v.Missing)
	case v.Pod == nil && v.Unfit != nil:
		return failStaging(v, v.Unfit.Message)
	case v.Pod == nil && v.Rival != "":
		return giveWay(v, shared(v.Rival))
	case v.Pod == nil:
		return startStaging(v, now)
	}
	o := observe(v, now)
	if !isStaged(v.Stage) || situationOf(v.Stage) == mend {
		o = o.BeforeReady(v.Pod, status.StartTime, now)
	}
	o = o.After(waitedFor(v))
	status.UID, status.Message = v.Pod.UID, kube.Cut(o.Message, maxMessage)
	switch o.State {
	case steppod.PodForeign, steppod.PodFailed:
		return failStaging(v, o.Message)
	case steppod.PodSucceeded:
		status.Phase = tarnv1.StagePodSucceeded
	case steppod.PodRunning:
		status.Phase = tarnv1.StagePodRunning
	case steppod.PodStarting:
		status.Phase = tarnv1.StagePodStarting
	case steppod.PodGoing:
		status.Message = cmp.Or(o.Message, "the staging pod is being deleted; the volume is staged again when it is gone")
	}
	return Plan{Actions: append(writeWait(v, status, o), guard(v, status)...), LookAt: o.CheckAt}
}

// observe gives the observation of the pod, including its Events.
func observe(v View, now time.Time) steppod.Observation {
	o := steppod.Observe(v.Pod, v.Stage.UID, now)
	if o.Message == "" && v.Kept.State == o.State {
		return v.Kept
	}
	return o
}

// writeWait is write, and also reports what keeps the pod from starting if that has changed.
func writeWait(v View, status tarnv1.PavStagePodStatus, o steppod.Observation) []action.Action {
	actions := write(v, status)
	if status.Message != v.Stage.Status.Pod.Message {
		actions = append(actions, v.waits(o, v.Pod)...)
	}
	return actions
}

// waitedFor is what the pod was last seen waiting for; empty if it was nothing unusual. If the
// pod was never seen, nothing is known: the status then speaks of an earlier pod.
func waitedFor(v View) string {
	if status := v.Stage.Status.Pod; v.Pod != nil && status.UID == v.Pod.UID {
		return status.Message
	}
	return ""
}

// failStaging gives a stage up. The status keeps the pod even if the API server rejected it,
// because unstaging is then due, as in the original.
func failStaging(v View, message string) Plan { return fail(v, v.Stage.Status.Pod, message) }

func fail(v View, status tarnv1.PavStagePodStatus, message string) Plan {
	status.Phase, status.Message = tarnv1.StagePodFailed, kube.Cut(message, maxMessage)
	switch v.Stage.Status.Node.Phase {
	case tarnv1.StageStaged:
		return Plan{Actions: write(v, status)} // the node agent reports what that means
	case "", tarnv1.StageWaiting:
		if status.Staged {
			return Plan{Actions: write(v, status)} // the node agent adds the pod's own message; see tellStaging
		}
	}
	return Plan{Actions: append(write(v, status), v.warn(ReasonStagingFailed, message)...)}
}

// tellStaging reports that a staging pod has failed, once the node agent has added the pod's
// own message. The message of the status shows whether that was reported.
func tellStaging(v View) []action.Action {
	status, node := v.Stage.Status.Pod, v.Stage.Status.Node
	message := kube.Cut(node.Message, maxMessage)
	if status.Phase != tarnv1.StagePodFailed || !status.Staged || node.Phase != tarnv1.StageFailed || message == "" || message == status.Message {
		return nil
	}
	status.Message = message
	return append(write(v, status), v.warn(ReasonStagingFailed, message)...)
}

// A volume made for a claim was validated before it was made. A volume written by hand is
// validated when it is staged. First its fields are checked, then a validation pod runs if the
// section has one. Staging begins only after that pod has succeeded.

// validated reports whether the validation pod has succeeded.
func validated(v View, now time.Time) bool {
	return situationOf(v.Stage) == validate && v.Pod != nil && steppod.Observe(v.Pod, v.Stage.UID, now).State == steppod.PodSucceeded
}

// startValidation writes the intent, as startStaging does, then creates the pod. The status
// still shows that no staging pod was sent, so nothing has to be unstaged. The pod's UID is not
// written, because the node agent would take the pod for the staging pod.
func startValidation(v View) Plan {
	pod := v.Validation.Pod
	return Plan{Actions: []action.Action{
		v.record(tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodValidating, Namespace: pod.Namespace, Name: pod.Name, ClaimDeleted: v.Stage.Status.Pod.ClaimDeleted}),
		action.StartPod{Pod: pod},
	}}
}

// planValidate follows the validation pod, and starts the staging pod once that has succeeded.
// A pod that vanished is replaced, as the provisioner now describes it.
func planValidate(v View, now time.Time) Plan {
	switch {
	case v.Refused != nil:
		return failStaging(v, v.Refused.Message)
	case v.Pod == nil:
		return planBegin(v, now)
	}
	status := v.Stage.Status.Pod
	o := observe(v, now).After(status.Message) // the message is about this pod alone
	switch o.State {
	case steppod.PodForeign:
		return failStaging(v, o.Message)
	case steppod.PodFailed:
		return failStaging(v, "Validation pod failed: "+o.Message)
	case steppod.PodSucceeded:
		p := planBegin(v, now)
		if v.Prepared != nil {
			p.Actions = append(p.Actions, discard(v)...)
		}
		return p
	}
	status.Message = kube.Cut(o.Message, maxMessage)
	return Plan{Actions: writeWait(v, status, o), LookAt: o.CheckAt}
}

// giveWay ends a stage that has staged nothing, because a stage of another volume has the same
// handle.
func giveWay(v View, message string) Plan {
	status := v.Stage.Status.Pod
	status.Staged = false
	p := fail(v, status, message)
	if ours(v) { // the validation pod
		p.Actions = append(p.Actions, discard(v)...)
	}
	return p
}
