package stage

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

const (
	// longLife is how long a staging pod must have run not to count as a repeated failure.
	longLife = 10 * time.Minute
	// hurry is the grace period, in seconds, of a staging pod whose volume is lost. The pod has
	// nothing to save.
	hurry = 1
)

// isLost reports whether the volume is lost and not available again.
func isLost(stage *tarnv1.PavStage) bool {
	return stage.Status.Node.Phase == tarnv1.StageLost && stage.Status.Node.Loss != nil
}

// isStaged reports whether the volume was ever available, so that pods may use it.
func isStaged(stage *tarnv1.PavStage) bool {
	return stage.Status.Node.Phase == tarnv1.StageStaged || isLost(stage)
}

// attemptOf is the attempt of the current staging pod.
func attemptOf(status tarnv1.PavStagePodStatus) int32 { return max(status.Attempt, firstAttempt) }

// restarts counts the staging pods in a row that ran only briefly.
func restarts(status tarnv1.PavStagePodStatus, now time.Time) int32 {
	if status.StartTime != nil && now.Sub(status.StartTime.Time) >= longLife {
		return 0
	}
	return status.Restarts + 1
}

// nextStart is when the next staging pod may start. After the first loss that is at once, then
// after growing pauses from the start of the previous pod. A node under pressure may have
// rejected that pod, so the end of the pressure counts as a new start.
func nextStart(v View) time.Time {
	status := v.Stage.Status.Pod
	if status.Restarts == 0 || status.StartTime == nil || !relief(v.Node).Before(status.StartTime.Time) {
		return time.Time{}
	}
	return status.StartTime.Add(kube.Backoff(status.Restarts, firstRetry, lastRetry, string(v.Stage.UID)))
}

// relief is since when a node has not been under pressure. It is zero while the node is, or if
// that is not known.
func relief(node *corev1.Node) time.Time {
	var since time.Time
	if node == nil {
		return since
	}
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure:
			if c.Status != corev1.ConditionFalse {
				return time.Time{}
			}
			if c.LastTransitionTime.After(since) {
				since = c.LastTransitionTime.Time
			}
		}
	}
	return since
}

// nextIsDue reports whether the next staging pod must start: the previous one is gone, the node
// has cleared the directory, and the pause is over.
func nextIsDue(v View, now time.Time) bool {
	status := v.Stage.Status.Pod
	return status.Phase == tarnv1.StagePodGone && v.Node != nil &&
		v.Stage.Status.Node.Loss.Cleared >= attemptOf(status) && !now.Before(nextStart(v))
}

// planMend removes the staging pod of a lost volume, then starts the next one and follows it.
func planMend(v View, now time.Time) Plan {
	status, lost := v.Stage.Status.Pod, v.Stage.Status.Node.Loss
	status.Message = ofStaging(v.Stage)
	switch {
	case status.Phase == tarnv1.StagePodGone:
		return planNext(v, now)
	case unmade(v) && v.Refused == nil:
		return startNext(v, now)
	case !lost.Spent(attemptOf(status)) && status.Phase == tarnv1.StagePodFailed:
		return Plan{} // the node agent adds the text of /pav/error and counts the failure
	case !lost.Spent(attemptOf(status)):
		return planFollow(v, now)
	case !ours(v):
		return podGone(v, status.Message)
	case lost.Failed == attemptOf(status) && now.Before(nextStart(v)):
		return Plan{LookAt: nextStart(v)} // readable until its successor is due
	}
	return Plan{Actions: append(write(v, status), hurryAll([]corev1.Pod{*v.Pod})...)}
}

// ofStaging is the stage's message about its staging pod. A message about a node expansion pod
// that does not end is dropped once that pod is gone: see stopExpansion.
func ofStaging(stage *tarnv1.PavStage) string {
	message := stage.Status.Pod.Message
	if strings.Contains(message, strings.TrimSuffix(steppod.PodName(tarnv1.StepNodeExpansion, stage.UID, 0), "0")) {
		return ""
	}
	return message
}

// podGone records that there is no staging pod although the stage continues.
func podGone(v View, message string) Plan {
	status := v.Stage.Status.Pod
	status.Phase, status.Name, status.UID, status.Message = tarnv1.StagePodGone, "", "", kube.Cut(message, maxMessage)
	return Plan{Actions: write(v, status)}
}

// unmade reports whether the status names a staging pod for a lost volume that was never seen.
// A controller that died before it created the pod leaves that. It is no failed attempt, so the
// same number is used once more.
func unmade(v View) bool {
	status := v.Stage.Status.Pod
	return v.Pod == nil && v.Node != nil && status.Phase == tarnv1.StagePodStarting && status.UID == "" &&
		!v.Stage.Status.Node.Loss.Spent(attemptOf(status))
}

// planNext starts the next staging pod when it is due.
func planNext(v View, now time.Time) Plan {
	switch {
	case v.Stage.Status.Node.Loss.Cleared < attemptOf(v.Stage.Status.Pod):
		return Plan{}
	case now.Before(nextStart(v)):
		return Plan{LookAt: nextStart(v)}
	}
	return startNext(v, now)
}

// startNext starts a staging pod for a lost volume as soon as possible.
func startNext(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	again := func(message string) Plan {
		status.Message = kube.Cut("the volume cannot be staged again: "+message, maxMessage)
		return Plan{Actions: write(v, status), LookAt: now.Add(kube.Backoff(status.Restarts+1, firstRetry, lastRetry, string(v.Stage.UID)))}
	}
	switch {
	case v.Missing != "":
		return again(v.Missing)
	case v.Unfit != nil:
		return again(v.Unfit.Message)
	}
	return startStaging(v, now)
}

// somethingToTell reports whether the consumers of the volume must be told of the beginning or
// the end of a loss.
func somethingToTell(stage *tarnv1.PavStage) bool {
	lost, status := stage.Status.Node.Loss, stage.Status.Pod
	return lost != nil && stage.DeletionTimestamp == nil &&
		(status.LossTold < lost.Number || lost.ReboundTime != nil && status.ReboundTold < lost.Number)
}

// planTelling tells each consumer of the volume what the loss means for it. Pods to be evicted
// are only recorded here, and are told after the answer to their eviction.
func planTelling(v View, s situation) []action.Action {
	if !somethingToTell(v.Stage) || s == stop || s == unstage || s == release {
		return nil
	}
	var actions []action.Action
	lost, status := v.Stage.Status.Node.Loss, v.Stage.Status.Pod
	if status.LossTold < lost.Number {
		status.LossTold = lost.Number
		note := fmt.Sprintf("volume %s is lost on node %s: %s; %s", v.Stage.Spec.VolumeName, v.Stage.Spec.NodeName, lost.Message, outlook(status.Recovery))
		actions = append(actions, v.warn(ReasonVolumeLost, note)...)
		for i := range v.Consumers {
			actions = append(actions, tell(v.Stage, &v.Consumers[i], corev1.EventTypeWarning, ReasonVolumeLost, note))
		}
	}
	if lost.ReboundTime != nil {
		status.ReboundTold, status.Evictions = lost.Number, evictionsAfter(v)
		for i := range v.Consumers {
			actions = append(actions, tellRebound(v.Stage, &v.Consumers[i])...)
		}
	}
	return append(actions, v.record(status))
}

// tell emits an Event about a pod that uses the volume, and about the stage.
func tell(stage *tarnv1.PavStage, pod *corev1.Pod, kind, reason, note string) action.Action {
	return action.Emit{About: pod, Related: stage, Type: kind, Reason: reason, Doing: eventAction, Note: note}
}

// outlook says what happens next.
func outlook(r tarnv1.StageRecovery) string {
	switch r {
	case tarnv1.RecoveryNone:
		return "Tarn only reports it, because the provisioner's volumeStaging.recovery is None; restart the pod when the volume can be staged again"
	case tarnv1.RecoveryRestartConsumers:
		return "it is staged again, and then this pod is evicted if a controller would replace it"
	}
	return "it is staged and mounted again; open files stay lost"
}

// tellRebound tells one pod that the volume is available again.
func tellRebound(stage *tarnv1.PavStage, pod *corev1.Pod) []action.Action {
	name := stage.Spec.VolumeName
	told := func(kind, reason, format string, args ...any) action.Action {
		return tell(stage, pod, kind, reason, fmt.Sprintf(format, args...))
	}
	if stage.Status.Pod.Recovery == tarnv1.RecoveryRestartConsumers {
		if metav1.GetControllerOf(pod) == nil {
			return []action.Action{told(corev1.EventTypeWarning, ReasonVolumeNotRebound,
				"volume %s was lost and is staged again, but no controller would replace this pod if it was evicted; delete and create it, or restart its containers, to see the volume", name)}
		}
		return nil
	}
	var actions []action.Action
	for _, l := range stage.Status.Node.Loss.Left {
		switch {
		case l.PodUID != pod.UID:
		case l.Container != "":
			actions = append(actions, told(corev1.EventTypeWarning, ReasonVolumeNotRebound,
				"volume %s was lost and is staged again, but container %s cannot be restarted with its subPath: %s; delete and create the pod", name, l.Container, l.Message))
		default:
			actions = append(actions, told(corev1.EventTypeWarning, ReasonVolumeNotRebound,
				"volume %s was lost and is staged again, but cannot be mounted again at %q in a running container: %s; restart the pod to see it there", name, l.Path, l.Message))
		}
	}
	if len(actions) > 0 {
		return actions
	}
	return []action.Action{told(corev1.EventTypeNormal, ReasonVolumeRebound, "volume %s was lost, is staged and mounted again: files can be opened; files that were open stay lost", name)}
}
