package stage

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/podvol"
)

// Reasons of Events.
const (
	ReasonStagingFailed    = "StagingFailed"
	ReasonPodVanished      = "StagingPodVanished"
	ReasonUnstagingFailed  = "UnstagingFailed"
	ReasonUnstagingSkipped = "UnstagingSkipped"
	ReasonNodeGone         = "NodeGone"
	ReasonUnguarded        = "StagingPodUnguarded"
	// Of Events on the pods that use a volume.
	ReasonVolumeLost       = "VolumeLost"
	ReasonVolumeRebound    = "VolumeRebound"
	ReasonVolumeNotRebound = "VolumeNotRebound"
	ReasonRestarted        = "RestartedForVolume"
)

const (
	// firstRetry and lastRetry bound the pause after a failed unstaging.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute

	// firstAttempt is the attempt in the first staging pod's name. It is started again
	// under its name where it vanishes before it made the volume available; each time
	// the volume is lost has an attempt of its own.
	firstAttempt = 1

	// maxMessage bounds what a status says, maxNote an Event (events.k8s.io), in bytes.
	maxMessage = 32768
	maxNote    = 1024
)

// situation is what a stage asks for; a closed set.
//
//	begin -> follow -> settled
//	  |         |         |
//	  |         +--> mend-+      (the volume is lost; then follow or settled again)
//	  |         |         |      (deletion requested)
//	  +---------+---------+-> stop -> unstage -> release
type situation string

const (
	begin   situation = "begin"   // no pod was ever sent
	follow  situation = "follow"  // the staging pod is or may be there
	settled situation = "settled" // Succeeded or Failed: waits for the stage's end
	mend    situation = "mend"    // the volume is lost and has to be staged again
	stop    situation = "stop"    // the staging pod has to go
	unstage situation = "unstage" // the unstaging pod is due as soon as the node has unmounted
	release situation = "release" // nothing runs any more
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
	case isLost(stage) && stage.Status.Pod.Recovery != tarnv1.RecoveryNone:
		return mend
	case phase == tarnv1.StagePodSucceeded, phase == tarnv1.StagePodFailed:
		return settled
	}
	return follow
}

// mayEvaluate says in which situations a section may be evaluated.
func mayEvaluate(s situation) bool {
	return s == begin || s == follow || s == mend || s == unstage
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
	case begin:
		if verdict(v) == usable && v.Node != nil {
			return tarnv1.StepStaging, firstAttempt
		}
	case follow:
		if v.Pod == nil && v.Node != nil && !isStaged(v.Stage) {
			return tarnv1.StepStaging, attemptOf(status)
		}
	case mend:
		if nextIsDue(v, now) {
			return tarnv1.StepStaging, attemptOf(status) + 1
		}
	case unstage:
		return dueUnstaging(v, status, now)
	}
	return "", 0
}

func dueUnstaging(v View, status tarnv1.PavStagePodStatus, now time.Time) (tarnv1.Step, int32) {
	switch {
	case !status.Staged, v.Node == nil, v.Pod != nil:
		return "", 0
	case status.Phase == tarnv1.StagePodStopped && v.Stage.Status.Node.Phase != tarnv1.StageUnmounted:
		return "", 0
	case status.NextAttemptTime == nil:
		return tarnv1.StepUnstaging, max(status.UnstageAttempts, 1)
	case now.Before(status.NextAttemptTime.Time):
		return "", 0
	}
	return tarnv1.StepUnstaging, status.UnstageAttempts + 1
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
	// DiscardPod deletes a pod.
	DiscardPod struct{ Pod *corev1.Pod }
	// LetGo takes finalizers off the stage.
	LetGo struct{ Finalizers []string }
	// EndStage requests the stage's deletion.
	EndStage struct{}
	// Post posts a Warning about the stage, and about the claim where it is known.
	Post struct{ Reason, Note string }
	// HurryPod deletes a pod that has nothing more to do, leaving it a second.
	HurryPod struct{ Pod *corev1.Pod }
	// Tell posts an Event about a pod that uses the volume, and the stage.
	Tell struct {
		Pod                *corev1.Pod
		Type, Reason, Note string
	}
	// Evict evicts a pod that uses the volume.
	Evict struct{ Pod *corev1.Pod }
	// RaiseGuard creates the disruption budget that keeps the staging pod.
	RaiseGuard struct{}
	// DropGuard deletes it.
	DropGuard struct{}
)

func (WriteStatus) action() {}
func (StartPod) action()    {}
func (DiscardPod) action()  {}
func (LetGo) action()       {}
func (EndStage) action()    {}
func (Post) action()        {}
func (HurryPod) action()    {}
func (Tell) action()        {}
func (Evict) action()       {}
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
	if tell := planTelling(v, s); len(tell) > 0 {
		return Plan{Actions: tell} // the write brings the stage back
	}
	switch s {
	case mend:
		return planMend(v, now)
	case begin:
		return planBegin(v, now)
	case follow:
		return planFollow(v, now)
	case stop:
		return planStop(v)
	case unstage:
		return planUnstage(v, now)
	case release:
		return planRelease(v)
	}
	return Plan{}
}

func planBegin(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	switch why := verdict(v); {
	case why == unknown:
		status.Message = fmt.Sprintf("waiting until PavProvisioner %q has been checked", v.Stage.Spec.Provisioner.Name)
		return Plan{Actions: write(v, status)}
	case why != usable:
		return failStaging(v, why)
	case v.Unfit != nil:
		return failStaging(v, v.Unfit.Message)
	}
	return startStaging(v, now)
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
		Restarts: was.Restarts, LossTold: was.LossTold, ReboundTold: was.ReboundTold,
	}
	if was.Phase == tarnv1.StagePodGone {
		status.Restarts = restarts(was, now)
	}
	actions := []Action{WriteStatus{status}}
	if was.UID != "" {
		actions = append(actions, Post{ReasonPodVanished, fmt.Sprintf("staging pod %s/%s vanished and is started again", was.Namespace, was.Name)})
	}
	return Plan{Actions: append(actions, StartPod{pod})}
}

// planFollow mirrors the staging pod, and starts it again where it vanished before it
// succeeded. A provisioner that is no longer accepted, or is being deleted, keeps its
// stages.
func planFollow(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	switch {
	case v.Refused != nil:
		return failStaging(v, v.Refused.Message)
	case v.Pod == nil && isStaged(v.Stage):
		return podGone(v, fmt.Sprintf("staging pod %s/%s was deleted", status.Namespace, status.Name))
	case v.Pod == nil && v.Missing != "":
		return failStaging(v, "the staging pod vanished and cannot be started again: "+v.Missing)
	case v.Pod == nil && v.Unfit != nil:
		return failStaging(v, v.Unfit.Message)
	case v.Pod == nil:
		return startStaging(v, now)
	}
	o := podvol.Observe(v.Pod, v.Stage.UID, now)
	status.UID, status.Message = v.Pod.UID, cut(o.Message, maxMessage)
	switch o.State {
	case podvol.PodForeign, podvol.PodFailed:
		return failStaging(v, o.Message)
	case podvol.PodSucceeded:
		status.Phase = tarnv1.StagePodSucceeded
	case podvol.PodRunning:
		status.Phase = tarnv1.StagePodRunning
	case podvol.PodStarting:
		status.Phase = tarnv1.StagePodStarting
	case podvol.PodGoing:
		status.Message = cmp.Or(o.Message, "the staging pod is being deleted; it is started again when it is gone")
	}
	return Plan{Actions: append(write(v, status), guard(v, status)...), LookAt: o.CheckAt}
}

// failStaging gives a stage up. That a pod was sent stays known, even where it was
// refused, because unstaging is due then, as in the original.
func failStaging(v View, message string) Plan {
	status := v.Stage.Status.Pod
	status.Phase, status.Message = tarnv1.StagePodFailed, cut(message, maxMessage)
	if v.Stage.Status.Node.Phase == tarnv1.StageStaged {
		return Plan{Actions: write(v, status)} // the node agent tells what that means
	}
	return Plan{Actions: append(write(v, status), Post{ReasonStagingFailed, cut(message, maxNote)})}
}

// planStop removes the staging pod. A pod of its name that is not ours is left
// alone.
func planStop(v View) Plan {
	if ours(v) {
		return Plan{Actions: discard(v)}
	}
	status := v.Stage.Status.Pod
	return Plan{Actions: write(v, tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodStopped, Namespace: status.Namespace, Staged: status.Staged,
	})}
}

// planUnstage runs the unstaging pod once the node has unmounted, and again, with a
// growing pause, until it succeeds. A failed pod is kept for reading until its
// successor is due, and is gone before that starts.
func planUnstage(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	switch {
	case v.Node == nil && status.Staged:
		return finish(v, fmt.Sprintf("node %q is gone: nothing can be unstaged there, and nothing was", v.Stage.Spec.NodeName))
	case v.Node == nil:
		return finish(v, "")
	case v.Refused != nil && v.Refused.Reason == podvol.ReasonNamespaceGone:
		// The namespace cannot end while this stage keeps its consumer's pod, and no pod
		// can be made in a namespace that ends: waiting would be for ever.
		return finish(v, v.Refused.Message+": the volume is not unstaged")
	case v.Refused != nil:
		return retryUnstaging(v, status.UnstageAttempts, v.Refused.Message, now)
	case v.Pod != nil && status.NextAttemptTime != nil:
		return waitForRetry(v, status, now)
	case v.Pod != nil:
		return followUnstaging(v, now)
	case status.Phase == tarnv1.StagePodStopped && v.Stage.Status.Node.Phase != tarnv1.StageUnmounted:
		return Plan{}
	case !status.Staged:
		return finish(v, "")
	case status.NextAttemptTime != nil && now.Before(status.NextAttemptTime.Time):
		return Plan{LookAt: status.NextAttemptTime.Time}
	case v.Missing != "":
		// All three are named with a uid, so what is gone never comes back, and
		// without it no template can be evaluated, today or later. Waiting would keep
		// the node's folder and the consumer's pod forever, so it is said and left.
		return finish(v, v.Missing+": its unstaging cannot be evaluated and was not done")
	}
	_, attempt := dueUnstaging(v, status, now)
	switch {
	case v.Unfit != nil:
		return retryUnstaging(v, attempt, v.Unfit.Message, now)
	case v.Prepared.Pod == nil:
		return finish(v, "")
	}
	pod := v.Prepared.Pod
	return Plan{Actions: []Action{WriteStatus{tarnv1.PavStagePodStatus{
		Phase: tarnv1.StagePodUnstaging, Namespace: pod.Namespace, Name: pod.Name, Staged: true,
		UnstageAttempts: attempt, Message: status.Message,
	}}, StartPod{pod}}}
}

func waitForRetry(v View, status tarnv1.PavStagePodStatus, now time.Time) Plan {
	at := status.NextAttemptTime.Time
	if now.Before(at) {
		return Plan{LookAt: at}
	}
	if ours(v) {
		return Plan{Actions: discard(v)}
	}
	// A pod that is not ours bears the name of the failed attempt; the next one has
	// another, and without a name the stage's next look finds no pod in its way.
	status.Name, status.UID = "", ""
	return Plan{Actions: write(v, status)}
}

func followUnstaging(v View, now time.Time) Plan {
	status := v.Stage.Status.Pod
	o := podvol.Observe(v.Pod, v.Stage.UID, now)
	switch o.State {
	case podvol.PodForeign, podvol.PodFailed:
		return retryUnstaging(v, status.UnstageAttempts, o.Message, now)
	case podvol.PodSucceeded:
		return finish(v, "")
	}
	status.UID, status.Message = v.Pod.UID, cut(o.Message, maxMessage)
	return Plan{Actions: write(v, status), LookAt: o.CheckAt}
}

func retryUnstaging(v View, attempt int32, message string, now time.Time) Plan {
	at := now.Add(kube.Backoff(attempt, firstRetry, lastRetry, string(v.Stage.UID)))
	status := v.Stage.Status.Pod
	status.Phase, status.UnstageAttempts, status.Message = tarnv1.StagePodUnstaging, attempt, cut(message, maxMessage)
	status.NextAttemptTime = &metav1.Time{Time: at.Round(time.Second)} // the API keeps whole seconds
	if v.Pod == nil {
		status.Name, status.UID = "", ""
	}
	return Plan{
		Actions: append(write(v, status), Post{ReasonUnstagingFailed, cut(message, maxNote)}),
		LookAt:  status.NextAttemptTime.Time,
	}
}

// finish ends unstaging; skipped says why it was not done, empty if it was or was
// not needed. Success is on record before the pod that had it is removed.
func finish(v View, skipped string) Plan {
	status := v.Stage.Status.Pod
	status.Phase, status.Message, status.NextAttemptTime = tarnv1.StagePodUnstaged, skipped, nil
	actions := write(v, status)
	if skipped != "" {
		actions = append(actions, Post{ReasonUnstagingSkipped, cut(skipped, maxNote)})
	}
	return Plan{Actions: append(actions, planRelease(v).Actions...)}
}

// planRelease removes the last pod and, when that is gone, the finalizer: that of
// the node agent too where its node is gone, because it will not.
func planRelease(v View) Plan {
	if ours(v) {
		return Plan{Actions: discard(v)}
	}
	var actions []Action
	if v.Guard != nil && v.Guard.DeletionTimestamp == nil {
		actions = append(actions, DropGuard{})
	}
	remove := []string{tarnv1.FinalizerStagePod}
	if v.Node == nil {
		remove = append(remove, tarnv1.FinalizerStageNode)
	}
	remove = slices.DeleteFunc(remove, func(f string) bool { return !slices.Contains(v.Stage.Finalizers, f) })
	if len(remove) > 0 {
		actions = append(actions, LetGo{remove})
	}
	return Plan{Actions: actions}
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

// cut shortens a text to a number of bytes, on the border of a character.
func cut(text string, most int) string {
	const ellipsis = "..."
	if len(text) <= most {
		return text
	}
	end := most - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
