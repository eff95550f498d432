package pavvolume

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// The life of a PavVolume, by phase:
//
//	Pending -> Validating -> Creating -> Created -> Deleting -> gone
//	   ^           |            |         |   ^        |
//	   |<----------+            v         |   +--------+ taken back
//	   +<------------------- Undoing <----+ the claim was gone, or a volume that is being deleted
//	                            |         | has the handle, before the volume was handed over
//	                            +----+----+
//	                                 v another volume has the handle
//	                              Disputed: a user decides
//
// Where a step leaves nothing to undo, Creating returns to Pending directly. Pending, Validating and
// Disputed end with the claim. A record that is forgotten ends in any phase. A volume of policy
// Retain ends in Created, when a user deletes its PersistentVolume. While a volume is Created,
// package expand makes it larger and recycle makes it anew.

// Act is what a reconcile does after the actions of its plan: a procedure whose writes depend on
// live reads between them. It is a closed set.
type Act string

// The acts. Each may be repeated, and leaves objects from which the next act follows.
const (
	// ActNone: nothing more. Wait for an event, or for Plan.Next.
	ActNone Act = ""
	// ActRecord: write the PavVolume.
	ActRecord Act = "Record"
	// ActReschedule: the selected node failed: let the scheduler select again.
	ActReschedule Act = "Reschedule"
	// ActBegin: begin an attempt: evaluate the templates, check the claim, start the pod.
	ActBegin Act = "Begin"
	// ActCreate: the validation has succeeded: start the creation.
	ActCreate Act = "Create"
	// ActEndClaims: delete the claims that were made for the volume, and go on once they are gone.
	ActEndClaims Act = "EndClaims"
	// ActRestart: start the missing pod of the current attempt.
	ActRestart Act = "Restart"
	// ActHandOver: write the PersistentVolume, record that, and remove the pod.
	ActHandOver Act = "HandOver"
	// ActRelease: the volume is released and its policy is Delete: begin to delete it.
	ActRelease Act = "Release"
	// ActDestroy: begin or repeat attempt Plan.Attempt to delete the storage.
	ActDestroy Act = "Destroy"
	// ActFinish: the storage is gone: remove the PersistentVolume, then the record.
	ActFinish Act = "Finish"
	// ActKeep: the PersistentVolume is being deleted and its policy is Retain: release it, then
	// remove the record. The storage stays.
	ActKeep Act = "Keep"
	// ActForget: remove the PersistentVolume, then the record. Their storage, if any, stays.
	ActForget Act = "Forget"
)

// Plan is what to do about one volume: the actions in order, then the act.
type Plan struct {
	Actions []action.Action
	// Record is the record after the actions; nil if they do not write its status.
	Record *tarnv1.PavVolume
	Act    Act
	// Attempt of the deletion pod, for ActDestroy.
	Attempt int32
	// Next is when to reconcile again without an event; zero means never.
	Next time.Time
}

// plan decides what to do.
func plan(v *View, now time.Time) Plan {
	switch {
	case v.Record == nil && v.Volume == nil:
		return planClaim(v)
	case v.Record == nil:
		return planStranger(v, now)
	case steppod.Forgotten(v.Record):
		return planForgotten(v, now)
	}
	switch v.Record.Status.Phase {
	case "", tarnv1.VolumePending:
		return planPending(v, now)
	case tarnv1.VolumeValidating:
		return planValidating(v, now)
	case tarnv1.VolumeCreating:
		return planCreating(v, now)
	case tarnv1.VolumeCreated:
		return planCreated(v, now)
	case tarnv1.VolumeUndoing, tarnv1.VolumeDeleting:
		return planDestroying(v, now)
	case tarnv1.VolumeDisputed:
		return planDisputed(v)
	}
	return Plan{}
}

// nextLook is when to reconcile again: the time of the next attempt, or the plan's own time. An
// attempt that is overdue waits for an event.
func nextLook(v *View, p Plan, now time.Time) time.Time {
	if v.Record == nil {
		return p.Next
	}
	status := v.Record.Status
	at := status.NextDeletionTime
	if status.Phase == tarnv1.VolumePending && !steppod.Forgotten(v.Record) {
		at = status.NextAttemptTime
	}
	switch {
	case at != nil && at.After(now):
		return at.Time
	case (p.Act == ActBegin || p.Act == ActCreate || p.Act == ActRestart) && !waitsForHandle(v.Record):
		return now.Add(startedLook)
	}
	return p.Next
}

// startedLook is when a new pod is checked without an event. Events come from a cache that selects
// pods by a label, which a user may remove.
const startedLook = time.Minute

// writes plans a status, and what follows it.
func writes(v *View, status *tarnv1.PavVolumeStatus, then ...action.Action) Plan {
	record := v.Record.DeepCopy()
	record.Status = *status
	return Plan{Record: record, Actions: append([]action.Action{action.UpdateStatus{To: record, Present: true}}, then...)}
}

// handedOver says that the record has its PersistentVolume.
func handedOver(record *tarnv1.PavVolume) bool {
	return meta.IsStatusConditionTrue(record.Status.Conditions, tarnv1.ConditionProvisioned)
}

// sayProvisioned sets condition Provisioned: True for reasonProvisioned, else False. It returns
// whether that changed the status.
func sayProvisioned(status *tarnv1.PavVolumeStatus, record *tarnv1.PavVolume, reason, message string) bool {
	value := metav1.ConditionFalse
	if reason == reasonProvisioned {
		value = metav1.ConditionTrue
	}
	return meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: tarnv1.ConditionProvisioned, Status: value, Reason: reason, Message: kube.Message(message), ObservedGeneration: record.Generation,
	})
}

// sayDeletable sets condition Deletable: True for reasonDeleting and reasonKept, else False.
func sayDeletable(status *tarnv1.PavVolumeStatus, record *tarnv1.PavVolume, reason, message string) bool {
	value := metav1.ConditionFalse
	if reason == reasonDeleting || reason == reasonKept {
		value = metav1.ConditionTrue
	}
	return meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: tarnv1.ConditionDeletable, Status: value, Reason: reason, Message: kube.Message(message), ObservedGeneration: record.Generation,
	})
}

// warnClaim is the Warning that an attempt failed, or why none begins; none without a text. Events
// that differ only in their text are merged under the first text, so each cause has its own doing.
func warnClaim(v *View, cause, note string) []action.Action {
	if note == "" || v.Claim == nil {
		return nil
	}
	return []action.Action{action.Emit{About: v.Claim, Type: corev1.EventTypeWarning, Reason: eventFailed, Doing: cause, Note: note}}
}

// tellClaim is an Event that says what the claim waits for.
func tellClaim(v *View, kind, reason, doing, note string) []action.Action {
	if note == "" || v.Claim == nil {
		return nil
	}
	return []action.Action{action.Emit{About: v.Claim, Related: v.Record, Type: kind, Reason: reason, Doing: doing, Note: note}}
}

// tellVolume is an Event about the volume and one about the record, as users look at both.
func tellVolume(v *View, kind, reason, doing, note string) []action.Action {
	var events []action.Action
	if note == "" {
		return nil
	}
	if v.Volume != nil {
		events = append(events, action.Emit{About: v.Volume, Related: v.Record, Type: kind, Reason: reason, Doing: doing, Note: note})
	}
	return append(events, action.Emit{About: v.Record, Type: kind, Reason: reason, Doing: doing, Note: note})
}

// warnVolume is the Warning that the storage cannot be deleted, one for each attempt.
func warnVolume(v *View, note string) []action.Action {
	return tellVolume(v, corev1.EventTypeWarning, eventDeleteFailed, deleteAttempt(v.Record.Status.DeletionAttempts), note)
}

func deleteAttempt(attempt int32) string { return fmt.Sprintf("DeleteAttempt%d", attempt) }

// await waits for the current pod. It reports what the pod waits for if that is unusual, and the
// end of that wait. A pod that cannot be deleted blocks the volume until a user checks its node, so
// that is a Warning.
func await(v *View) Plan {
	o, record := v.Observed, v.Record
	status, deleting, news := record.Status.DeepCopy(), destroying(record), false
	begun := o.State == steppod.PodRunning || o.State == steppod.PodStarting && !deleting
	switch {
	case o.Message != "" && deleting:
		news = sayDeletable(status, record, reasonDeletionPodWaits, o.Message)
	case o.Message != "":
		news = sayProvisioned(status, record, reasonPodWaits, o.Message)
	case waitedFor(record) == "" || !begun: // it did not wait, or still does
	case deleting:
		news = sayDeletable(status, record, reasonDeleting, deletionRuns(status.DeletionAttempts))
	default:
		news = sayProvisioned(status, record, reasonInProgress, creationRuns(status.Attempts, status.Phase))
	}
	if !news {
		return Plan{Next: o.CheckAt}
	}
	overdue := ""
	if o.State == steppod.PodGoing {
		overdue = o.Message
	}
	doing, note := o.WaitEvent(v.Pod)
	tell := append(warnClaim(v, string(steppod.PodGoing), overdue), tellClaim(v, corev1.EventTypeWarning, steppod.EventPodWaiting, doing, note)...)
	if deleting {
		tell = append(warnVolume(v, overdue), tellVolume(v, corev1.EventTypeWarning, steppod.EventPodWaiting, doing, note)...)
	}
	p := writes(v, status, tell...)
	p.Next = o.CheckAt
	return p
}

// waitedFor is what the current pod was last seen to wait for, empty if that was nothing unusual.
func waitedFor(record *tarnv1.PavVolume) string {
	which, reason := tarnv1.ConditionProvisioned, reasonPodWaits
	if destroying(record) {
		which, reason = tarnv1.ConditionDeletable, reasonDeletionPodWaits
	}
	if c := meta.FindStatusCondition(record.Status.Conditions, which); c != nil && c.Reason == reason {
		return c.Message
	}
	return ""
}

// podFailure words the failure of the current pod as the original provisioner does.
func podFailure(v *View) *steppod.StepError {
	o, step := v.Observed.After(waitedFor(v.Record)), stepOf(v.Record)
	message := o.Message
	if o.Reason == steppod.ReasonPodFailed {
		message = map[tarnv1.Step]string{
			tarnv1.StepValidation: "Validation", tarnv1.StepCreation: "Creation", tarnv1.StepDeletion: "Deletion",
		}[step] + " pod failed: " + message
	}
	return &steppod.StepError{Step: step, Reason: o.Reason, Message: message}
}

// mended says whether the provisioner changed since the last failure.
func mended(v *View) bool {
	last := v.Record.Status.LastError
	return last != nil && v.Provisioner != nil && last.ProvisionerGeneration != 0 && last.ProvisionerGeneration != v.Provisioner.Generation
}
