package reclaim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of condition Deletable of a PavVolume.
const (
	// reasonStaged: the volume is still staged on a node. Delete the pods that use it.
	reasonStaged = "Staged"
	// reasonCreating: a creation pod still runs. The deletion begins when it has ended.
	reasonCreating = "CreationPodRunning"
	// reasonProvisioner: the PavProvisioner does not exist any more. Create it again, or remove
	// the storage by hand.
	reasonProvisioner = "ProvisionerMissing"
	// reasonDeleting: the storage is being deleted.
	reasonDeleting = "Deleting"
	// reasonVolumeLost: the PersistentVolume was removed by force, so the storage is kept. The
	// message says how to delete it.
	reasonVolumeLost = "VolumeRemovedByForce"
	// reasonTakenBack: the volume was taken back, so its storage is not deleted. If the message says
	// so, check its data.
	reasonTakenBack = "TakenBack"
	// reasonKept: the reclaim policy is Retain, so the storage is kept.
	reasonKept = "Kept"
	// reasonClaimThere: the claim of the volume still exists. Delete the claim too, if its data is
	// to be deleted.
	reasonClaimThere = "ClaimStillThere"
	// reasonProtected: a label protects the volume from deletion. Remove the label to delete the
	// volume.
	reasonProtected = "DeletionProtected"
	// reasonRetained: the volume is kept. The message says why.
	reasonRetained = "Retained"
	// reasonPodWaits: the deletion pod cannot start. Correct the cause in the message.
	reasonPodWaits = "DeletionPodWaiting"

	// reasonPolicy: the reclaim policy is unknown, and the volume is kept. Set Delete, Retain or
	// Recycle.
	reasonPolicy = "UnknownReclaimPolicy"
)

// Events of deleting a volume, on a PersistentVolume or PavVolume.
const (
	// eventDeleteFailed: the storage could not be deleted. Correct the cause in the message; the
	// next attempt follows by itself.
	eventDeleteFailed = "VolumeFailedDelete"
	// eventInUse: the volume is not deleted yet, because it is in use. Delete what the message
	// names.
	eventInUse = "VolumeDelete"
	// eventUnknownPolicy: the reclaim policy is unknown, and the volume is kept. Set Delete,
	// Retain or Recycle.
	eventUnknownPolicy = "VolumeUnknownReclaimPolicy"
	// eventUndoSkipped: a node does not exist any more, so a creation on it is not undone. Its
	// storage is lost with the node.
	eventUndoSkipped = "UndoSkipped"
)

// retentionLook is how often a retention is checked. No event of the volume reports a change of its
// class or its set.
const retentionLook = time.Minute

// Act is what a reconcile does. It is a closed set.
type Act string

// The acts. Each is idempotent.
const (
	// ActNone: wait for an event, or for Plan.Next.
	ActNone Act = "None"
	// ActStatus: write Plan.Status.
	ActStatus Act = "Status"
	// ActDelete: the volume is released and its policy is Delete. After live checks, write
	// Plan.Status, whose phase is Deleting.
	ActDelete Act = "Delete"
	// ActStop: remove Plan.Stop, pods that must end before the next step.
	ActStop Act = "Stop"
	// ActLost: after a live check, record that the PersistentVolume was removed by force.
	ActLost Act = "Lost"
	// ActRun: after a live check, begin or repeat attempt Plan.Attempt.
	ActRun Act = "Run"
	// ActUndone: hand the record back to provision.
	ActUndone Act = "Undone"
	// ActDeleted: the storage is gone: remove the PersistentVolume, then the record.
	ActDeleted Act = "Deleted"
	// ActKeep: the PersistentVolume is being deleted and its policy is Retain. Record that, release
	// the PersistentVolume, then remove the record. The storage stays.
	ActKeep Act = "Keep"
	// ActForget: after a live check, remove the PersistentVolume, then the record. Their storage,
	// if any, stays.
	ActForget Act = "Forget"
)

// Plan is what to do about one volume.
type Plan struct {
	Act    Act
	Status *tarnv1.PavVolumeStatus
	Stop   []corev1.Pod
	// Attempt of the deletion pod, for ActRun.
	Attempt int32
	// Warning is the text of an Event about volume and record; empty for none. Its reason is
	// WarningReason; empty means VolumeFailedDelete.
	Warning, WarningReason string
	// WaitAction and WaitNote are the Event that says why the pod cannot start; empty for none. See
	// steppod.Observation.WaitEvent.
	WaitAction, WaitNote string
	// Notice is posted like a Warning, but as a Normal Event: the volume is still in use, and is
	// deleted after that.
	Notice string
	// Next is when to reconcile again without an event; zero means never.
	Next time.Time
}

// decide returns the plan for a View.
func decide(v *View, now time.Time) Plan {
	if steppod.Forgotten(v.Record) {
		return decideForgotten(v, now)
	}
	switch v.Record.Status.Phase {
	case tarnv1.VolumeCreated:
		return decideCreated(v, now)
	case tarnv1.VolumeUndoing, tarnv1.VolumeDeleting:
		return decideDestroying(v, now)
	default: // until then provision handles the record
		return Plan{Act: ActNone}
	}
}

// decideCreated applies the reclaim policy to a volume that was handed over.
func decideCreated(v *View, now time.Time) Plan {
	if !meta.IsStatusConditionTrue(v.Record.Status.Conditions, tarnv1.ConditionProvisioned) {
		return Plan{Act: ActNone}
	}
	vol := v.Volume
	if vol == nil {
		return decideWithoutVolume(v)
	}
	if !released(vol) {
		return takeBackWord(v)
	}
	switch vol.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete:
		if volume.DeletionProtected(vol) {
			return protected(v)
		}
		if why, until := v.kept(now); why != "" {
			return retained(v, why, kube.Sooner(until, now.Add(retentionLook)))
		}
		return Plan{Act: ActDelete, Status: deleting(v.Record)}
	case corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimRecycle:
		// keep it until a user deletes the PersistentVolume
		return decideRetained(v)
	default: // a policy that the API server knows and Tarn does not
		p := say(v, reasonPolicy, fmt.Sprintf("reclaim policy %q is unknown, so the volume is kept; set it to Delete, Retain or Recycle", vol.Spec.PersistentVolumeReclaimPolicy))
		if p.Status != nil {
			p.Warning, p.WarningReason = meta.FindStatusCondition(p.Status.Conditions, tarnv1.ConditionDeletable).Message, eventUnknownPolicy
		}
		return p
	}
}

// decideRetained keeps the storage of a released volume. The record is removed together with the
// PersistentVolume.
func decideRetained(v *View) Plan {
	if v.Volume.DeletionTimestamp == nil {
		return takeBackWord(v)
	}
	status := v.Record.Status.DeepCopy()
	condition(status, v.Record, metav1.ConditionTrue, reasonKept, "the PersistentVolume is being removed and its reclaim policy is Retain: the storage is kept")
	return Plan{Act: ActKeep, Status: status}
}

// released says whether no claim can use a volume any more. A volume whose claimRef was cleared, or
// names a future claim, is about to be used again.
func released(vol *corev1.PersistentVolume) bool {
	if vol.DeletionTimestamp != nil {
		return vol.Status.Phase != corev1.VolumeBound
	}
	return vol.Status.Phase == corev1.VolumeReleased && vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID != ""
}

// protected keeps the storage of a volume with the label against deletion. The API server would
// refuse to delete the PersistentVolume, which would then have no storage.
func protected(v *View) Plan {
	if c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable); c != nil && c.Reason == reasonTakenBack {
		return Plan{Act: ActNone}
	}
	return say(v, reasonProtected, fmt.Sprintf("the volume is released and its reclaim policy is Delete, but its label %s protects it; to lift that: kubectl label persistentvolumes %s %s-",
		tarnv1.LabelDeletionProtection, v.Volume.Name, tarnv1.LabelDeletionProtection))
}

// kept says why the data of the released volume must not be destroyed yet, and until when. The
// retention controller sets policy Retain on such volumes before they are released. This check
// covers volumes released before it could, and clusters where it does not run.
func (v *View) kept(now time.Time) (why string, until time.Time) {
	return volume.KeptBy(v.Volume, v.Retention, v.Namespace, now)
}

// retained waits until the retention of a volume ends, and checks regularly whether it still
// applies.
func retained(v *View, why string, next time.Time) Plan {
	if c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable); c != nil && c.Reason == reasonTakenBack {
		return Plan{Act: ActNone, Next: next}
	}
	p := say(v, reasonRetained, why)
	p.Next = next
	return p
}

// takeBackWord removes an outdated condition from a volume in use.
func takeBackWord(v *View) Plan {
	c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
	if c == nil || c.Reason == reasonTakenBack {
		return Plan{Act: ActNone}
	}
	status := v.Record.Status.DeepCopy()
	meta.RemoveStatusCondition(&status.Conditions, tarnv1.ConditionDeletable)
	return Plan{Act: ActStatus, Status: status}
}

// decideWithoutVolume handles a record whose PersistentVolume was removed by force, by removing its
// finalizer by hand. The storage still exists, and only the record knows it. The storage is deleted
// only when a user deletes the record.
func decideWithoutVolume(v *View) Plan {
	if c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable); c != nil && c.Reason == reasonKept {
		return Plan{Act: ActKeep}
	}
	if v.Record.DeletionTimestamp != nil {
		return Plan{Act: ActDelete, Status: deleting(v.Record)}
	}
	lost := say(v, reasonVolumeLost, fmt.Sprintf(
		"PersistentVolume %s was removed by force; its storage still exists; to delete the storage: kubectl delete pavvolume %s", v.Record.Name, v.Record.Name))
	if lost.Act == ActStatus {
		lost.Act = ActLost
	}
	return lost
}

// sharedHandle decides about a deletion whose handle other volumes have: the deletion pod could
// delete the data of a volume that stays.
//
// A released volume waits for the others, except failed creations, which are undone after it. A
// failed creation waits for volumes that are deleted before it, and becomes Disputed if another
// volume stays. shared is false if the deletion may continue.
func sharedHandle(v *View, handle string, holders []kube.Holder, now time.Time) (p Plan, shared bool) {
	record := v.Record
	if record.Status.Phase != tarnv1.VolumeUndoing {
		i := slices.IndexFunc(holders, func(h kube.Holder) bool { return !h.Undoing })
		if i < 0 {
			return Plan{Act: ActNone}, false
		}
		message := fmt.Sprintf("%s has volumeHandle %q too, so the deletion pod would delete its data; delete that volume, or set the reclaim policy of this one to Retain", holders[i], handle)
		if p = say(v, steppod.ReasonHandleTaken, message); p.Status != nil {
			p.Warning = message
		}
		return p, true
	}
	if i := slices.IndexFunc(holders, func(h kube.Holder) bool { return !h.Going }); i >= 0 {
		err := steppod.HandleTaken(record, holders[i])
		status := record.Status.DeepCopy()
		status.Phase, status.NextDeletionTime = tarnv1.VolumeDisputed, nil
		status.LastError = err.Recorded(nil, now)
		condition(status, record, metav1.ConditionFalse, err.Reason, err.Message)
		return Plan{Act: ActStatus, Status: status, Warning: err.Message}, true
	}
	for _, h := range holders {
		if first := cmp.Or(h.Since.Compare(record.CreationTimestamp.Time), cmp.Compare(h.Name, record.Name)) < 0; !h.Undoing || first {
			return say(v, steppod.ReasonHandleGoing, steppod.HandleGoing(handle, h)), true
		}
	}
	return Plan{Act: ActNone}, false
}

func deleting(record *tarnv1.PavVolume) *tarnv1.PavVolumeStatus {
	status := record.Status.DeepCopy()
	status.Phase, status.DeletionAttempts, status.NextDeletionTime = tarnv1.VolumeDeleting, status.DeletionAttempts+1, nil
	status.DeletionStarted = false
	condition(status, record, metav1.ConditionTrue, reasonDeleting, "the volume is released and its reclaim policy is Delete")
	return status
}

// decideDestroying takes the next step of a deletion, for a record in Undoing or Deleting.
func decideDestroying(v *View, now time.Time) Plan {
	if takenBack(v, now) {
		return takeBack(v, now)
	}
	if n := len(v.Stages); n > 0 {
		return inUse(v, reasonStaged, fmt.Sprintf("the volume is still staged on node %s", v.Stages[0].Spec.NodeName))
	}
	if len(v.Others) > 0 {
		return stop(v, v.Others, now)
	}
	if at := v.Record.Status.NextDeletionTime; at != nil || retriesWaiting(v) {
		if at != nil && now.Before(at.Time) && !mended(v) && !retried(v) {
			return Plan{Act: ActNone, Next: at.Time}
		}
		if v.Pod != nil && !steppod.Ended(v.Pod) { // past its deadline, but it may still be working
			return stop(v, []corev1.Pod{*v.Pod}, now)
		}
		return run(v, v.Record.Status.DeletionAttempts+1, now)
	}
	switch o := v.Observed.After(waitedFor(v)); o.State {
	case steppod.PodAbsent:
		return run(v, max(v.Record.Status.DeletionAttempts, 1), now)
	case steppod.PodSucceeded:
		return done(v, now)
	case steppod.PodFailed, steppod.PodForeign:
		message := o.Message
		if o.Reason == steppod.ReasonPodFailed {
			message = "Deletion pod failed: " + message
		}
		return Plan{Act: ActStatus, Warning: message,
			Status: failed(v, &steppod.StepError{Step: tarnv1.StepDeletion, Reason: o.Reason, Message: message}, v.Record.Status.DeletionAttempts, now)}
	default:
		return await(v)
	}
}

// takenBack says whether the volume must not be deleted any more. To stop the deletion, a user may
// have bound the volume again, set its policy to Retain, protected it or given it a retention.
func takenBack(v *View, now time.Time) bool {
	if v.Record.Status.Phase != tarnv1.VolumeDeleting || v.Volume == nil {
		return false
	}
	why, _ := v.kept(now)
	return !released(v.Volume) || v.Volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		volume.DeletionProtected(v.Volume) || why != ""
}

// takeBack cancels a deletion once no pod works on it.
func takeBack(v *View, now time.Time) Plan {
	if v.Pod != nil && !steppod.Ended(v.Pod) {
		return stop(v, []corev1.Pod{*v.Pod}, now)
	}
	status := v.Record.Status.DeepCopy()
	status.Phase, status.NextDeletionTime = tarnv1.VolumeCreated, nil
	message := "the deletion was cancelled before anything was deleted"
	p := Plan{Act: ActStatus, Status: status}
	if status.DeletionStarted {
		message = "the deletion was cancelled after a deletion pod had started; check the data of the volume"
		p.Warning = message
	}
	condition(status, v.Record, metav1.ConditionFalse, reasonTakenBack, message)
	return p
}

// mended says whether the provisioner changed since the last failure.
func mended(v *View) bool {
	last := v.Record.Status.LastError
	return last != nil && v.Provisioner != nil && last.ProvisionerGeneration != 0 && last.ProvisionerGeneration != v.Provisioner.Generation
}

func run(v *View, attempt int32, now time.Time) Plan {
	if v.Provisioner == nil || v.Provisioner.UID != v.Record.Spec.Provisioner.UID {
		if v.Record.DeletionTimestamp != nil {
			return done(v, now) // deleting the record confirms that the storage was removed by hand
		}
		return say(v, reasonProvisioner, fmt.Sprintf(
			"PavProvisioner %q, which created the volume, is gone, and nothing else can delete its storage; delete the storage by hand, then: kubectl delete pavvolume %s",
			v.Record.Spec.Provisioner.Name, v.Record.Name))
	}
	return Plan{Act: ActRun, Attempt: attempt}
}

// done returns what follows when the storage is gone.
func done(v *View, now time.Time) Plan {
	if v.Record.Status.Phase == tarnv1.VolumeDeleting {
		return Plan{Act: ActDeleted}
	}
	return Plan{Act: ActUndone, Status: undone(v.Record, now)}
}

// undone is the status that hands the record back to provision. The claim may still need a volume;
// after a failed attempt, provision waits for the backoff. The count of deletions continues, as it
// names their pods: an earlier pod must not count as a later one.
func undone(record *tarnv1.PavVolume, now time.Time) *tarnv1.PavVolumeStatus {
	status := record.Status.DeepCopy()
	status.Phase, status.Handle, status.Capacity = tarnv1.VolumePending, "", 0
	status.NextDeletionTime = nil
	if e := status.LastError; e != nil {
		status.NextAttemptTime = steppod.RetryAt(record, status.Attempts, now)
		if c := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionProvisioned); c != nil && e.Step == tarnv1.StepDeletion {
			e.Step, e.Reason, e.Message = tarnv1.StepCreation, c.Reason, c.Message // the deletion's error is resolved
		}
	}
	if !record.Spec.WaitsForNode { // else provision lets the scheduler select again
		status.NodeName = ""
	}
	meta.RemoveStatusCondition(&status.Conditions, tarnv1.ConditionDeletable)
	return status
}

// failed records a failed deletion. The next attempt is due after a pause that doubles each time.
func failed(v *View, err *steppod.StepError, attempt int32, now time.Time) *tarnv1.PavVolumeStatus {
	record := v.Record
	status := record.Status.DeepCopy()
	status.DeletionAttempts = attempt
	status.LastError = err.Recorded(v.Provisioner, now)
	status.NextDeletionTime = steppod.RetryAt(record, attempt, now)
	condition(status, record, metav1.ConditionFalse, err.Reason, err.Message)
	return status
}

// begun is the status written before a deletion pod starts.
func begun(record *tarnv1.PavVolume, attempt int32, namespace string) *tarnv1.PavVolumeStatus {
	status := record.Status.DeepCopy()
	status.DeletionAttempts, status.NextDeletionTime = attempt, nil
	status.PodNamespace, status.DeletionStarted = namespace, true
	underWay(status, record, attempt)
	return status
}

func underWay(status *tarnv1.PavVolumeStatus, record *tarnv1.PavVolume, attempt int32) {
	condition(status, record, metav1.ConditionTrue, reasonDeleting, fmt.Sprintf("attempt %d is running", attempt))
}

// say records why the volume cannot be deleted yet, if that is news.
func say(v *View, reason, message string) Plan {
	status := v.Record.Status.DeepCopy()
	if !condition(status, v.Record, metav1.ConditionFalse, reason, message) {
		return Plan{Act: ActNone}
	}
	return Plan{Act: ActStatus, Status: status}
}

// inUse records that the volume is deleted once it is no longer in use, and posts an Event if that
// is news.
func inUse(v *View, reason, message string) Plan {
	p := say(v, reason, message)
	if p.Status != nil {
		p.Notice = message
	}
	return p
}

func condition(status *tarnv1.PavVolumeStatus, record *tarnv1.PavVolume, value metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: tarnv1.ConditionDeletable, Status: value, Reason: reason, Message: kube.Message(message), ObservedGeneration: record.Generation,
	})
}
