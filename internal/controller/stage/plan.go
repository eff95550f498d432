package stage

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
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

	// maxMessage bounds the message of a status, maxNote the note of an Event (events.k8s.io),
	// both in bytes.
	maxMessage = 32768
	maxNote    = 1024
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
	Actions []Action
	LookAt  time.Time
}

// Action is one write. It is one of the types below, each of which may be repeated without
// harm.
type Action interface{ action() }

type (
	// WriteStatus writes the stage controller's part of the status.
	WriteStatus struct{ Status tarnv1.PavStagePodStatus }
	// StartPod creates a pod.
	StartPod struct{ Pod *corev1.Pod }
	// ConfirmSole checks again whether a stage of another volume has the same handle, now that
	// this stage is recorded. If two begin at once, at least one gives way.
	ConfirmSole struct{ Volume *corev1.PersistentVolume }
	// DiscardPod deletes a pod.
	DiscardPod struct{ Pod *corev1.Pod }
	// LetGo removes finalizers from the stage.
	LetGo struct{ Finalizers []string }
	// EndStage requests the stage's deletion. With Unchanged it does so only if the stage is
	// unchanged since it was read.
	EndStage struct{ Unchanged bool }
	// EndOther requests the deletion of another stage, if it is unchanged since it was read.
	EndOther struct{ Stage *tarnv1.PavStage }
	// Post emits a Warning about the stage, and about the claim if it is known.
	Post struct{ Reason, Note string }
	// PostWait reports on the stage and the claim what keeps a pod from starting; see
	// steppod.Observation.WaitEvent.
	PostWait struct{ Action, Note string }
	// HurryPod deletes a pod that has nothing more to do, with a grace period of a second.
	HurryPod struct{ Pod *corev1.Pod }
	// Tell emits an Event about a pod that uses the volume, and about the stage.
	Tell struct {
		Pod                *corev1.Pod
		Type, Reason, Note string
	}
	// RaiseGuard creates the disruption budget that keeps the staging pod.
	RaiseGuard struct{}
	// DropGuard deletes the budget.
	DropGuard struct{}
)

func (WriteStatus) action() {}
func (StartPod) action()    {}
func (ConfirmSole) action() {}
func (DiscardPod) action()  {}
func (LetGo) action()       {}
func (EndStage) action()    {}
func (EndOther) action()    {}
func (Post) action()        {}
func (PostWait) action()    {}
func (HurryPod) action()    {}
func (Tell) action()        {}
func (RaiseGuard) action()  {}
func (DropGuard) action()   {}

// plan decides. A pod is recorded in the status before it is created, so that its name is known
// after a crash.
func plan(v View, now time.Time) Plan {
	if v.Stage == nil {
		return Plan{}
	}
	s := situationOf(v.Stage)
	if v.Node == nil && v.Stage.DeletionTimestamp == nil {
		// The node agent would request this, but it is gone with the node.
		return Plan{Actions: []Action{
			Post{ReasonNodeGone, fmt.Sprintf("node %q is gone; the stage ends with it", v.Stage.Spec.NodeName)},
			EndStage{},
		}}
	}
	if v.Forsaken {
		return Plan{Actions: []Action{EndStage{Unchanged: true}}} // unless the kubelet asks in the meantime
	}
	if v.Dropped && v.Stage.DeletionTimestamp == nil {
		return Plan{Actions: []Action{EndStage{}}} // the node agent does not: it may be down, or controlled by an attacker
	}
	if v.Doomed != "" {
		status := v.Stage.Status.Pod
		status.ClaimDeleted = v.Doomed
		return Plan{Actions: []Action{WriteStatus{status}}} // the write triggers the next reconcile
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

func planBegin(v View, now time.Time) Plan {
	if unanswered(v.Stage) {
		return Plan{} // no subject of the stage was read
	}
	status := v.Stage.Status.Pod
	switch why := verdict(v); {
	case v.Missing != "" && v.Stage.Awaited():
		return Plan{Actions: []Action{EndStage{Unchanged: true}}} // it was a head start: the kubelet's call reports the cause
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
		p.Actions = slices.Insert(p.Actions, i, Action(EndOther{&v.Unsent[i]}))
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
	actions := []Action{WriteStatus{status}}
	if attempt == firstAttempt {
		actions = append(actions, ConfirmSole{v.Volume})
	}
	actions = append(actions, StartPod{pod})
	if attempt == firstAttempt && v.Prepared.Warning != "" {
		actions = append(actions, Post{ReasonOptionsUnread, kube.Cut(v.Prepared.Warning, maxNote)})
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
func writeWait(v View, status tarnv1.PavStagePodStatus, o steppod.Observation) []Action {
	actions := write(v, status)
	if action, note := o.WaitEvent(v.Pod); note != "" && status.Message != v.Stage.Status.Pod.Message {
		actions = append(actions, PostWait{action, kube.Cut(note, maxNote)})
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
func failStaging(v View, message string) Plan {
	status := v.Stage.Status.Pod
	status.Phase, status.Message = tarnv1.StagePodFailed, kube.Cut(message, maxMessage)
	switch v.Stage.Status.Node.Phase {
	case tarnv1.StageStaged:
		return Plan{Actions: write(v, status)} // the node agent reports what that means
	case "", tarnv1.StageWaiting:
		if status.Staged {
			return Plan{Actions: write(v, status)} // the node agent adds the pod's own message; see tellStaging
		}
	}
	return Plan{Actions: append(write(v, status), Post{ReasonStagingFailed, kube.Cut(message, maxNote)})}
}

// tellStaging reports that a staging pod has failed, once the node agent has added the pod's
// own message. The message of the status shows whether that was reported.
func tellStaging(v View) []Action {
	status, node := v.Stage.Status.Pod, v.Stage.Status.Node
	message := kube.Cut(node.Message, maxMessage)
	if status.Phase != tarnv1.StagePodFailed || !status.Staged || node.Phase != tarnv1.StageFailed || message == "" || message == status.Message {
		return nil
	}
	status.Message = message
	return append(write(v, status), Post{ReasonStagingFailed, kube.Cut(message, maxNote)})
}

// ours reports whether the pod exists and belongs to the stage.
func ours(v View) bool {
	return v.Pod != nil && slices.ContainsFunc(v.Pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == v.Stage.UID })
}

// discard deletes the pod, unless its deletion was already requested.
func discard(v View) []Action {
	if v.Pod.DeletionTimestamp != nil {
		return nil
	}
	return []Action{DiscardPod{v.Pod}}
}

// write writes a status, unless nothing changes.
func write(v View, status tarnv1.PavStagePodStatus) []Action {
	if equality.Semantic.DeepEqual(v.Stage.Status.Pod, status) {
		return nil
	}
	return []Action{WriteStatus{status}}
}
