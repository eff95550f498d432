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

	// firstAttempt is the attempt in the first staging pod's name; each time the volume is
	// lost has an attempt of its own.
	firstAttempt = 1

	// maxMessage bounds what a status says, maxNote an Event (events.k8s.io), in bytes.
	maxMessage = 32768
	maxNote    = 1024
)

// situation is what a stage asks for; a closed set.
//
//	begin --------> follow -> settled
//	  |                ^  |      |
//	  +--> validate ---+  +-> mend (the volume is lost; then follow or settled again)
//	  |        |          |      |  (deletion requested)
//	  +--------+----------+------+-> stop -> unstage -> release
type situation string

const (
	begin  situation = "begin"  // no pod was ever sent
	follow situation = "follow" // the staging pod is or may be there
	// validate: the validation pod of a volume written by hand is or may be there.
	validate situation = "validate"
	settled  situation = "settled" // Succeeded or Failed: waits for the stage's end
	mend     situation = "mend"    // the volume is lost and has to be staged again
	stop     situation = "stop"    // the staging pod has to go
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

// mayEvaluate says in which situations a section may be evaluated.
func mayEvaluate(s situation) bool {
	return s == begin || s == validate || s == follow || s == mend || s == unstage
}

// mayStart says whether a look may come to a pod that is started for the claim: what it
// rests on has to be true now, not a moment ago.
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

// podKey is the pod a stage's situation is about; its name is empty where it is
// about none.
func podKey(stage *tarnv1.PavStage) types.NamespacedName {
	if situationOf(stage) == settled {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: stage.Status.Pod.Namespace, Name: stage.Status.Pod.Name}
}

// due says which pod has to be made now, and which attempt it is; no step if none.
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

// Plan is what to do, in this order, and when to look again though no event tells;
// zero: not needed.
type Plan struct {
	Actions []Action
	LookAt  time.Time
}

// Action is one write. It is one of the types below, each of which may be done
// twice without harm.
type Action interface{ action() }

type (
	// WriteStatus writes the stage controller's part of the status.
	WriteStatus struct{ Status tarnv1.PavStagePodStatus }
	// StartPod creates a pod.
	StartPod struct{ Pod *corev1.Pod }
	// ConfirmSole looks once more whether a stage of another volume has the same handle,
	// now that this one is known to all: of two that begin at once, one at least gives way.
	ConfirmSole struct{ Volume *corev1.PersistentVolume }
	// DiscardPod deletes a pod.
	DiscardPod struct{ Pod *corev1.Pod }
	// LetGo takes finalizers off the stage.
	LetGo struct{ Finalizers []string }
	// EndStage requests the stage's deletion; Unchanged: if it stands as it was read.
	EndStage struct{ Unchanged bool }
	// EndOther requests the deletion of another stage, if it stands as it was read.
	EndOther struct{ Stage *tarnv1.PavStage }
	// Post posts a Warning about the stage, and about the claim where it is known.
	Post struct{ Reason, Note string }
	// PostWait tells the stage and the claim what keeps a pod from starting; see
	// steppod.Observation.WaitEvent.
	PostWait struct{ Action, Note string }
	// HurryPod deletes a pod that has nothing more to do, leaving it a second.
	HurryPod struct{ Pod *corev1.Pod }
	// Tell posts an Event about a pod that uses the volume, and the stage.
	Tell struct {
		Pod                *corev1.Pod
		Type, Reason, Note string
	}
	// RaiseGuard creates the disruption budget that keeps the staging pod.
	RaiseGuard struct{}
	// DropGuard deletes it.
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

// plan decides. Whatever a pod is to be made for is written down before the pod is,
// so that after a crash its name is known.
func plan(v View, now time.Time) Plan {
	if v.Stage == nil {
		return Plan{}
	}
	s := situationOf(v.Stage)
	if v.Node == nil && v.Stage.DeletionTimestamp == nil {
		// Its node agent, which would request this, is gone with the node.
		return Plan{Actions: []Action{
			Post{ReasonNodeGone, fmt.Sprintf("node %q is gone; the stage ends with it", v.Stage.Spec.NodeName)},
			EndStage{},
		}}
	}
	if v.Forsaken {
		return Plan{Actions: []Action{EndStage{Unchanged: true}}} // but if the kubelet asks meanwhile
	}
	if v.Dropped && v.Stage.DeletionTimestamp == nil {
		return Plan{Actions: []Action{EndStage{}}} // its node agent does not, which may be down, or an attacker's
	}
	if v.Doomed != "" {
		status := v.Stage.Status.Pod
		status.ClaimDeleted = v.Doomed
		return Plan{Actions: []Action{WriteStatus{status}}} // the write brings the stage back
	}
	if tell := tellStaging(v); len(tell) > 0 {
		return Plan{Actions: tell}
	}
	if tell := planTelling(v, s); len(tell) > 0 {
		return Plan{Actions: tell} // the write brings the stage back
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
		return Plan{} // nothing was read of what the stage is about
	}
	status := v.Stage.Status.Pod
	switch why := verdict(v); {
	case v.Missing != "" && v.Stage.Awaited():
		return Plan{Actions: []Action{EndStage{Unchanged: true}}} // it was a head start: the kubelet's call tells
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

// shared says to people that a volume cannot be staged beside its rival.
func shared(rival string) string {
	return rival + ": " + tarnv1.StageShared + "; give each volume a volumeHandle of its own, or use one claim for both"
}

// startStaging writes the intent, then creates the pod. The intent is written even
// where it stands already: that write is refused if the cache was behind, and then
// no pod is made for a stage that has moved on.
func startStaging(v View, now time.Time) Plan {
	pod, was := v.Prepared.Pod, v.Stage.Status.Pod
	_, attempt := due(v, now)
	status := tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodStarting, Namespace: pod.Namespace, Name: pod.Name, Staged: true,
		Attempt: attempt, Recovery: v.Prepared.Recovery, StartTime: &metav1.Time{Time: now.Truncate(time.Second)},
		Restarts: was.Restarts, LossTold: was.LossTold, ReboundTold: was.ReboundTold, Evictions: was.Evictions,
		ClaimDeleted: was.ClaimDeleted,
		Expansion:    was.Expansion, // in place of one that ran the node has asked for another
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

// unstarted says that the staging pod is written down and was never seen, as a controller
// leaves it that dies between the two.
func unstarted(v View) bool {
	return v.Pod == nil && !isStaged(v.Stage) && v.Stage.Status.Pod.UID == ""
}

// planFollow mirrors the staging pod. One that vanished before its volume was there fails
// the stage, as another in its place would find its /pav used, where scripts fail that begin
// with mkdir /pav/volume; the kubelet asks again, and gets a new stage. A provisioner that is
// no longer accepted, or is being deleted, keeps its stages.
func planFollow(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	switch {
	case v.Refused != nil && v.Refused.Reason == steppod.ReasonHandleTaken:
		return giveWay(v, v.Refused.Message)
	case v.Refused != nil:
		return failStaging(v, v.Refused.Message)
	case v.Pod == nil && isStaged(v.Stage) && status.Phase == tarnv1.StagePodGone:
		return Plan{} // that is told; the node agent's word is next
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

// observe is what is observed of the pod, with what its Events tell.
func observe(v View, now time.Time) steppod.Observation {
	o := steppod.Observe(v.Pod, v.Stage.UID, now)
	if o.Message == "" && v.Kept.State == o.State {
		return v.Kept
	}
	return o
}

// writeWait is write, and tells what keeps the pod from starting where that has changed.
func writeWait(v View, status tarnv1.PavStagePodStatus, o steppod.Observation) []Action {
	actions := write(v, status)
	if action, note := o.WaitEvent(v.Pod); note != "" && status.Message != v.Stage.Status.Pod.Message {
		actions = append(actions, PostWait{action, kube.Cut(note, maxNote)})
	}
	return actions
}

// waitedFor is what the pod was last seen to wait for, empty where it was nothing out of
// the ordinary. Of a pod that was never looked at nothing is known: what is written then is
// an earlier one's.
func waitedFor(v View) string {
	if status := v.Stage.Status.Pod; v.Pod != nil && status.UID == v.Pod.UID {
		return status.Message
	}
	return ""
}

// failStaging gives a stage up. That a pod was sent stays known, even where it was
// refused, because unstaging is due then, as in the original.
func failStaging(v View, message string) Plan {
	status := v.Stage.Status.Pod
	status.Phase, status.Message = tarnv1.StagePodFailed, kube.Cut(message, maxMessage)
	switch v.Stage.Status.Node.Phase {
	case tarnv1.StageStaged:
		return Plan{Actions: write(v, status)} // the node agent tells what that means
	case "", tarnv1.StageWaiting:
		if status.Staged {
			return Plan{Actions: write(v, status)} // it adds what the pod has said; see tellStaging
		}
	}
	return Plan{Actions: append(write(v, status), Post{ReasonStagingFailed, kube.Cut(message, maxNote)})}
}

// tellStaging tells that a staging pod has failed, once the node agent has added what the pod
// has said itself. That it is told shows in the message.
func tellStaging(v View) []Action {
	status, node := v.Stage.Status.Pod, v.Stage.Status.Node
	message := kube.Cut(node.Message, maxMessage)
	if status.Phase != tarnv1.StagePodFailed || !status.Staged || node.Phase != tarnv1.StageFailed || message == "" || message == status.Message {
		return nil
	}
	status.Message = message
	return append(write(v, status), Post{ReasonStagingFailed, kube.Cut(message, maxNote)})
}

// ours says that there is a pod and that it belongs to the stage.
func ours(v View) bool {
	return v.Pod != nil && slices.ContainsFunc(v.Pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == v.Stage.UID })
}

// discard deletes the pod, unless that has been requested.
func discard(v View) []Action {
	if v.Pod.DeletionTimestamp != nil {
		return nil
	}
	return []Action{DiscardPod{v.Pod}}
}

// write gives the write of a status, none where nothing changes.
func write(v View, status tarnv1.PavStagePodStatus) []Action {
	if equality.Semantic.DeepEqual(v.Stage.Status.Pod, status) {
		return nil
	}
	return []Action{WriteStatus{status}}
}
