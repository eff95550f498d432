package pavvolume

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
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
	// reasonDeletionPodWaits: the deletion pod cannot start. Correct the cause in the message.
	reasonDeletionPodWaits = "DeletionPodWaiting"

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
	// storage is lost with the node. Or a claim that the deletion pod mounts holds nothing.
	eventUndoSkipped = "UndoSkipped"
)

// retentionLook is how often a retention is checked. No event of the volume reports a change of its
// class or its set.
const retentionLook = time.Minute

// planHandedOver applies the reclaim policy to a volume that was handed over.
func planHandedOver(v *View, now time.Time) Plan {
	vol := v.Volume
	if vol == nil {
		return planWithoutVolume(v)
	}
	if !released(vol) {
		return unsayDeletable(v)
	}
	switch policy := vol.Spec.PersistentVolumeReclaimPolicy; policy {
	case corev1.PersistentVolumeReclaimDelete:
		if volume.DeletionProtected(vol) {
			return protected(v)
		}
		if why, until := v.kept(now); why != "" {
			return retained(v, why, kube.Sooner(until, now.Add(retentionLook)))
		}
		return Plan{Act: ActRelease}
	case corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimRecycle: // the record is removed together with the PersistentVolume
		if vol.DeletionTimestamp == nil {
			return unsayDeletable(v)
		}
		status := v.Record.Status.DeepCopy()
		sayDeletable(status, v.Record, reasonKept, "the PersistentVolume is being removed and its reclaim policy is Retain: the storage is kept")
		p := writes(v, status)
		p.Act = ActKeep
		return p
	default: // a policy that the API server knows and Tarn does not
		message := fmt.Sprintf("reclaim policy %q is unknown, so the volume is kept; set it to Delete, Retain or Recycle", policy)
		return undeletable(v, reasonPolicy, message,
			tellVolume(v, corev1.EventTypeWarning, eventUnknownPolicy, deleteAttempt(v.Record.Status.DeletionAttempts), message)...)
	}
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
	if deletableReason(v) == reasonTakenBack {
		return Plan{}
	}
	return undeletable(v, reasonProtected, fmt.Sprintf("the volume is released and its reclaim policy is Delete, but its label %s protects it; to lift that: kubectl label persistentvolumes %s %s-",
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
func retained(v *View, why string, next time.Time) (p Plan) {
	if deletableReason(v) != reasonTakenBack {
		p = undeletable(v, reasonRetained, why)
	}
	p.Next = next
	return p
}

// deletableReason is the reason of condition Deletable, empty without it.
func deletableReason(v *View) string {
	if c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable); c != nil {
		return c.Reason
	}
	return ""
}

// unsayDeletable removes an outdated condition from a volume in use.
func unsayDeletable(v *View) Plan {
	if reason := deletableReason(v); reason == "" || reason == reasonTakenBack {
		return Plan{}
	}
	status := v.Record.Status.DeepCopy()
	meta.RemoveStatusCondition(&status.Conditions, tarnv1.ConditionDeletable)
	return writes(v, status)
}

// planWithoutVolume handles a record whose PersistentVolume was removed by force, by removing its
// finalizer by hand. The storage still exists, and only the record knows it. The storage is deleted
// only when a user deletes the record.
func planWithoutVolume(v *View) Plan {
	if deletableReason(v) == reasonKept {
		return Plan{Act: ActKeep}
	}
	if v.Record.DeletionTimestamp != nil {
		return Plan{Act: ActRelease}
	}
	p := undeletable(v, reasonVolumeLost, fmt.Sprintf(
		"PersistentVolume %s was removed by force; its storage still exists; to delete the storage: kubectl delete pavvolume %s", v.Record.Name, v.Record.Name))
	if p.Record != nil { // a new PersistentVolume may be missing only from the cache
		vol := &corev1.PersistentVolume{}
		vol.Name = v.Name
		p.Actions = append([]action.Action{action.ConfirmAbsent{Object: vol}}, p.Actions...)
	}
	return p
}

// deleting is the plan that begins a deletion.
func deleting(v *View) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase, status.DeletionAttempts, status.NextDeletionTime = tarnv1.VolumeDeleting, status.DeletionAttempts+1, nil
	status.DeletionStarted = false
	sayDeletable(status, v.Record, reasonDeleting, "the volume is released and its reclaim policy is Delete")
	return writes(v, status)
}

// planDestroying takes the next step of a deletion, for a record in Undoing or Deleting.
func planDestroying(v *View, now time.Time) Plan {
	if takenBack(v, now) {
		return takeBack(v, now)
	}
	if len(v.Stages) > 0 {
		return staged(v)
	}
	if others := v.others(); len(others) > 0 {
		return stop(v, others, now)
	}
	attempt := v.Record.Status.DeletionAttempts
	if at := v.Record.Status.NextDeletionTime; at != nil || retriesWaiting(v) {
		if at != nil && now.Before(at.Time) && !mended(v) && !retried(v) {
			return Plan{Next: at.Time}
		}
		if v.Pod != nil && !steppod.Ended(v.Pod) { // past its deadline, but it may still be working
			return stop(v, []corev1.Pod{*v.Pod}, now)
		}
		return run(v, attempt+1, now)
	}
	switch v.Observed.State {
	case steppod.PodAbsent:
		return run(v, max(attempt, 1), now)
	case steppod.PodSucceeded:
		return done(v, now)
	case steppod.PodFailed, steppod.PodForeign:
		return failedDeletion(v, podFailure(v), attempt, now)
	}
	return await(v)
}

// takenBack says whether the volume must not be deleted any more. To stop the deletion, a user may
// have bound the volume again, set its policy to Retain, protected it or given it a retention. That
// is too late once a claim below the volume is being deleted.
func takenBack(v *View, now time.Time) bool {
	if v.Record.Status.Phase != tarnv1.VolumeDeleting || v.Volume == nil || v.endsClaims() {
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
	message, warning := "the deletion was cancelled before anything was deleted", ""
	if status.DeletionStarted {
		message = "the deletion was cancelled after a deletion pod had started; check the data of the volume"
		warning = message
	}
	sayDeletable(status, v.Record, reasonTakenBack, message)
	return writes(v, status, warnVolume(v, warning)...)
}

func run(v *View, attempt int32, now time.Time) Plan {
	if v.Provisioner == nil || v.Provisioner.UID != v.Record.Spec.Provisioner.UID {
		if v.Record.DeletionTimestamp != nil {
			return done(v, now) // deleting the record confirms that the storage was removed by hand
		}
		return undeletable(v, reasonProvisioner, fmt.Sprintf(
			"PavProvisioner %q, which created the volume, is gone, and nothing else can delete its storage; delete the storage by hand, then: kubectl delete pavvolume %s",
			v.Record.Spec.Provisioner.Name, v.Record.Name))
	}
	return Plan{Act: ActDestroy, Attempt: attempt}
}

// done returns what follows when the storage is gone. After Undoing, the claim may still need a
// volume; after a failed attempt, the next one waits for the backoff. The count of deletions
// continues, as it names their pods: an earlier pod must not count as a later one.
func done(v *View, now time.Time, then ...action.Action) Plan {
	record := v.Record
	if record.Status.Phase == tarnv1.VolumeDeleting {
		return Plan{Actions: then, Act: ActFinish}
	}
	status := record.Status.DeepCopy()
	status.Phase, status.Handle, status.Capacity = tarnv1.VolumePending, "", 0
	status.NextDeletionTime = nil
	if e := status.LastError; e != nil {
		status.NextAttemptTime = steppod.RetryAt(record, status.Attempts, now)
		if c := meta.FindStatusCondition(status.Conditions, tarnv1.ConditionProvisioned); c != nil && e.Step == tarnv1.StepDeletion {
			e.Step, e.Reason, e.Message = tarnv1.StepCreation, c.Reason, c.Message // the deletion's error is resolved
		}
	}
	if !record.Spec.WaitsForNode { // else the scheduler selects again
		status.NodeName = ""
	}
	meta.RemoveStatusCondition(&status.Conditions, tarnv1.ConditionDeletable)
	return writes(v, status, then...)
}

// failedDeletion records a failed deletion. The next attempt is due after a pause that doubles each
// time.
func failedDeletion(v *View, err *steppod.StepError, attempt int32, now time.Time) Plan {
	status := v.Record.Status.DeepCopy()
	status.DeletionAttempts = attempt
	status.LastError = err.Recorded(v.Provisioner, now)
	status.NextDeletionTime = steppod.RetryAt(v.Record, attempt, now)
	sayDeletable(status, v.Record, err.Reason, err.Message)
	return writes(v, status, tellVolume(v, corev1.EventTypeWarning, eventDeleteFailed, deleteAttempt(attempt), err.Message)...)
}

// begunDeletion is the plan before a deletion pod starts.
func begunDeletion(v *View, attempt int32, namespace string) Plan {
	status := v.Record.Status.DeepCopy()
	status.DeletionAttempts, status.NextDeletionTime = attempt, nil
	status.PodNamespace, status.DeletionStarted = namespace, true
	sayDeletable(status, v.Record, reasonDeleting, deletionRuns(attempt))
	return writes(v, status)
}

func deletionRuns(attempt int32) string { return fmt.Sprintf("attempt %d is running", attempt) }

// undeletable records why the volume cannot be deleted yet, and tells it, if that is news.
func undeletable(v *View, reason, message string, tell ...action.Action) Plan {
	status := v.Record.Status.DeepCopy()
	if !sayDeletable(status, v.Record, reason, message) {
		return Plan{}
	}
	return writes(v, status, tell...)
}

// inUse records that the volume is deleted once it is no longer in use.
func inUse(v *View, reason, message string) Plan {
	return undeletable(v, reason, message, tellVolume(v, corev1.EventTypeNormal, eventInUse, deleteAttempt(v.Record.Status.DeletionAttempts), message)...)
}

func staged(v *View) Plan {
	return inUse(v, reasonStaged, fmt.Sprintf("the volume is still staged on node %s", v.Stages[0].Spec.NodeName))
}

// stop removes pods that must end before the next step. It warns of a pod that stays long, as that
// blocks the volume until a user checks the pod's node.
func stop(v *View, pods []corev1.Pod, now time.Time) Plan {
	var next time.Time
	overdue := ""
	for i := range pods {
		o := steppod.Observe(&pods[i], v.Record.UID, now)
		if o.State != steppod.PodGoing {
			continue // its end, or the begin of its deletion, is an event
		}
		next, overdue = kube.Sooner(next, o.CheckAt), cmp.Or(overdue, o.Message)
	}
	p := undeletable(v, reasonCreating, cmp.Or(overdue, fmt.Sprintf("pod %s/%s has not ended yet", pods[0].Namespace, pods[0].Name)), warnVolume(v, overdue)...)
	p.Actions, p.Next = append(p.Actions, action.DiscardPods{Pods: pods}), next
	return p
}

// withoutNode decides about a volume whose node is gone. Leftovers of a creation there hold no user
// data, and their claim gets a volume elsewhere. A volume that was used waits for its node, or
// until a user deletes the record to confirm that the storage is gone.
func withoutNode(v *View, node string, now time.Time) Plan {
	switch {
	case v.Record.Status.Phase == tarnv1.VolumeUndoing:
		return skipped(v, node+" is gone, so what was created there for the volume is not deleted", now)
	case v.Record.DeletionTimestamp != nil:
		return done(v, now, warnVolume(v, fmt.Sprintf("%s is gone and PavVolume %s was deleted: its storage, with handle %q, is assumed to be gone with the node",
			node, v.Record.Name, v.Record.Status.Handle))...)
	}
	message := fmt.Sprintf("%s, which has the volume's storage, is gone; the storage is deleted when the node is back; if the node will not come back: kubectl delete pavvolume %s", node, v.Record.Name)
	return undeletable(v, steppod.ReasonNodeGone, message, warnVolume(v, message)...)
}

// skipped ends a deletion that no pod does, and says why.
func skipped(v *View, why string, now time.Time) Plan {
	reason := eventUndoSkipped
	if v.Record.Status.Phase == tarnv1.VolumeDeleting {
		reason = eventDeleteFailed
	}
	return done(v, now, tellVolume(v, corev1.EventTypeWarning, reason, deleteAttempt(v.Record.Status.DeletionAttempts), why)...)
}
