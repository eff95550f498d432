package stage

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
)

// Events of staging, on a PavStage, its claim, or the pods that use the volume.
const (
	// ReasonStagingFailed: the volume could not be staged on the node. Correct the cause in the
	// message; the next attempt follows by itself.
	ReasonStagingFailed = "StagingFailed"
	// ReasonUnstagingFailed: the volume could not be unstaged. Correct the cause in the message;
	// the next attempt follows by itself.
	ReasonUnstagingFailed = "UnstagingFailed"
	// ReasonUnstagingSkipped: the stage ended without its unstaging pod. The message says why.
	ReasonUnstagingSkipped = "UnstagingSkipped"
	// ReasonNodeGone: the node does not exist any more, and the stage ends with it.
	ReasonNodeGone = "NodeGone"
	// ReasonEndHeld: the stage was deleted while pods still use the volume. It ends after the last
	// one.
	ReasonEndHeld = "UnstagingHeld"
	// ReasonUnguarded: the staging pod has no disruption budget, so a drain may evict it too
	// early. Correct the cause in the message.
	ReasonUnguarded = "StagingPodUnguarded"
	// ReasonOptionsUnread: the templates do not read the mount options of the volume, so they have
	// no effect.
	ReasonOptionsUnread = "MountOptionsUnread"
	// Of Events on the pods that use a volume.
	// ReasonVolumeLost: the volume was lost while pods use it. Tarn stages it again, unless its
	// recovery is None.
	ReasonVolumeLost = "VolumeLost"
	// ReasonVolumeRebound: the lost volume is mounted again. Programs have to open their files
	// again.
	ReasonVolumeRebound = "VolumeRebound"
	// ReasonVolumeNotRebound: the volume could not be mounted again in the pod. Restart the pod.
	ReasonVolumeNotRebound = "VolumeNotRebound"
	// ReasonRestarted: the pod was evicted because its volume was lost. Its controller creates a
	// new one.
	ReasonRestarted = "RestartedForVolume"
	// ReasonNotRestarted: the pod could not be evicted. The message has the cause; delete the pod
	// yourself if it does not recover.
	ReasonNotRestarted = "RestartRefused"
)

const (
	// firstRetry and lastRetry bound the pause after a failed unstaging.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute

	// firstAttempt is the attempt in the first staging pod's name. Each loss of the volume
	// begins a new attempt.
	firstAttempt = 1

	// maxMessage bounds the message of a status, in bytes.
	maxMessage = 32768
)

// situation is what a stage needs; a closed set.
//
//	begin --------> follow -> settled
//	  |                ^  |      |
//	  +--> validate ---+  +-> mend (the volume is lost; then follow or settled again)
//	  |        |          |      |  (deletion requested)
//	  +--------+----------+------+-> stop -> unstage -> release
type situation string

const (
	begin  situation = "begin"  // no pod was ever sent
	follow situation = "follow" // the staging pod exists or may exist
	// validate: the validation pod of a volume written by hand exists or may exist.
	validate situation = "validate"
	settled  situation = "settled" // Succeeded or Failed: waits for the stage's end
	mend     situation = "mend"    // the volume is lost and must be staged again
	stop     situation = "stop"    // the staging pod must be deleted
	unstage  situation = "unstage" // the unstaging pod is due as soon as the node has unmounted
	release  situation = "release" // nothing runs any more
)

func situationOf(stage *tarnv1.PavStage) situation {
	phase := stage.Status.Pod.Phase
	switch {
	case phase == tarnv1.StagePodUnstaged:
		return release
	case phase == tarnv1.StagePodStopped, phase == tarnv1.StagePodUnstaging:
		return unstage
	case stage.DeletionTimestamp != nil:
		return stop
	case phase == "":
		return begin
	case phase == tarnv1.StagePodValidating:
		return validate
	case isLost(stage) && !stage.Void() && stage.Status.Pod.Recovery != tarnv1.RecoveryNone:
		return mend
	case phase == tarnv1.StagePodSucceeded, phase == tarnv1.StagePodFailed:
		return settled
	}
	return follow
}

// mayEvaluate reports in which situations a section may be evaluated.
func mayEvaluate(s situation) bool {
	return s == begin || s == validate || s == follow || s == mend || s == unstage
}

// mayStart reports whether this reconcile may start a pod for the claim. What that rests on is
// then read from the API server, not from the cache.
func mayStart(v View, now time.Time) bool {
	switch situationOf(v.Stage) {
	case begin:
		return true
	case validate:
		return v.Pod == nil || validated(v, now)
	case follow:
		return unstarted(v)
	case mend:
		return nextIsDue(v, now) || unmade(v)
	}
	return false
}

// podKey names the pod of a stage's situation; the name is empty if there is none.
func podKey(stage *tarnv1.PavStage) types.NamespacedName {
	if situationOf(stage) == settled {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: stage.Status.Pod.Namespace, Name: stage.Status.Pod.Name}
}

// due says which pod must be created now, and its attempt; no step if none.
func due(v View, now time.Time) (tarnv1.Step, int32) {
	status := v.Stage.Status.Pod
	switch situationOf(v.Stage) {
	case begin, validate:
		switch {
		case verdict(v) != usable, v.Node == nil:
		case validated(v, now):
			return tarnv1.StepStaging, firstAttempt
		case v.Pod == nil && !v.Made:
			return tarnv1.StepValidation, firstAttempt
		case v.Pod == nil:
			return tarnv1.StepStaging, firstAttempt
		}
	case follow:
		if v.Node != nil && unstarted(v) {
			return tarnv1.StepStaging, attemptOf(status)
		}
	case mend:
		switch {
		case nextIsDue(v, now):
			return tarnv1.StepStaging, attemptOf(status) + 1
		case unmade(v):
			return tarnv1.StepStaging, attemptOf(status)
		}
	case unstage:
		return dueUnstaging(v, status, now)
	}
	return "", 0
}

// Plan is what to do, in this order. LookAt is when to reconcile if no event arrives; zero
// means never.
type Plan struct {
	Actions []action.Action
	LookAt  time.Time
}

// plan decides. A pod is recorded in the status before it is created, so that its name is known
// after a crash.
func plan(v View, now time.Time) Plan {
	if v.Stage == nil {
		return Plan{}
	}
	s := situationOf(v.Stage)
	if v.Node == nil && v.Stage.DeletionTimestamp == nil {
		// The node agent would request this, but it is gone with the node.
		told := v.warn(ReasonNodeGone, fmt.Sprintf("node %q is gone; the stage ends with it", v.Stage.Spec.NodeName))
		return Plan{Actions: append(told, action.Delete{Object: v.Stage})}
	}
	if v.Forsaken {
		return Plan{Actions: []action.Action{action.Delete{Object: v.Stage, Unchanged: true}}} // unless the kubelet asks in the meantime
	}
	if v.Dropped && v.Stage.DeletionTimestamp == nil {
		return Plan{Actions: []action.Action{action.Delete{Object: v.Stage}}} // the node agent does not: it may be down, or controlled by an attacker
	}
	if v.Doomed != "" {
		status := v.Stage.Status.Pod
		status.ClaimDeleted = v.Doomed
		return Plan{Actions: []action.Action{v.record(status)}} // the write triggers the next reconcile
	}
	if tell := tellStaging(v); len(tell) > 0 {
		return Plan{Actions: tell}
	}
	if tell := planTelling(v, s); len(tell) > 0 {
		return Plan{Actions: tell} // the write triggers the next reconcile
	}
	switch s {
	case mend:
		return planMend(v, now)
	case begin:
		return planBegin(v, now)
	case validate:
		return planValidate(v, now)
	case follow:
		return planFollow(v, now)
	case stop:
		if v.Held {
			return planHold(v, now)
		}
		return planStop(v)
	case unstage:
		return planUnstage(v, now)
	case release:
		return planRelease(v)
	}
	return Plan{}
}

// ours reports whether the pod exists and belongs to the stage.
func ours(v View) bool { return v.Pod != nil && steppod.OwnedBy(v.Pod, v.Stage.UID) }

// discard deletes the pod, unless its deletion was already requested.
func discard(v View) []action.Action {
	if v.Pod.DeletionTimestamp != nil {
		return nil
	}
	return []action.Action{action.DiscardPods{Pods: []corev1.Pod{*v.Pod}}}
}

// record writes a status.
func (v View) record(status tarnv1.PavStagePodStatus) action.Action {
	return WriteStatus{Stage: v.Stage, Status: status}
}

// write writes a status, unless nothing changes.
func write(v View, status tarnv1.PavStagePodStatus) []action.Action {
	if equality.Semantic.DeepEqual(v.Stage.Status.Pod, status) {
		return nil
	}
	return []action.Action{v.record(status)}
}

// warn emits a Warning about the stage, and about its claim if that is known. Users look for it
// there.
func (v View) warn(reason, note string) []action.Action {
	about := action.Emit{About: v.Stage, Type: corev1.EventTypeWarning, Reason: reason, Doing: eventAction, Note: note}
	if v.Claim == nil {
		return []action.Action{about}
	}
	also := about
	about.Related, also.About, also.Related = v.Claim, v.Claim, v.Stage
	return []action.Action{about, also}
}

// waits reports on the stage and the claim what keeps a pod from starting.
func (v View) waits(o steppod.Observation, pod *corev1.Pod) []action.Action {
	doing, note := o.WaitEvent(pod)
	if note == "" {
		return nil
	}
	told := []action.Action{action.Emit{About: v.Stage, Type: corev1.EventTypeWarning, Reason: steppod.EventPodWaiting, Doing: doing, Note: note}}
	if v.Claim != nil {
		told = append(told, action.Emit{About: v.Claim, Related: v.Stage, Type: corev1.EventTypeWarning, Reason: steppod.EventPodWaiting, Doing: doing, Note: note})
	}
	return told
}
