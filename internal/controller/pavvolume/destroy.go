package pavvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// errClaimThere says that an existing claim keeps a volume that should be deleted. No event of the
// volume reports a change of that, so the queue retries.
var errClaimThere = errors.New("the claim of a volume that should be deleted still exists")

// release begins to delete a released volume. The record's own event enqueues it again, with the
// pods of the new attempt.
func (r *reconciler) release(ctx context.Context, v *View) (more bool, err error) {
	if err := r.confirmReleased(ctx, v); err != nil {
		return false, err
	}
	return r.apply(ctx, v, deleting(v))
}

// confirmReleased checks live what must hold before data is destroyed. The volume is as in the
// cache, and no retention keeps it. Its claim is gone or has another volume. If the volume points
// at no claim, no claim names it. If a claim keeps the volume, the record says so.
func (r *reconciler) confirmReleased(ctx context.Context, v *View) error {
	live, err := r.confirmVolume(ctx, v)
	if err != nil {
		return err
	}
	if live != nil {
		said, err := r.retention(ctx, r.reader, v)
		if err != nil {
			return err
		}
		if why, _ := volume.KeptBy(live, said, v.Namespace, r.clock.Now()); why != "" {
			return kube.ErrStale
		}
	}
	maker := &corev1.ObjectReference{Namespace: v.Record.Spec.Claim.Namespace, Name: v.Record.Spec.Claim.Name, UID: v.Record.Spec.Claim.UID}
	claim, err := r.claims.Keeping(ctx, v.Record.Name, live, maker)
	if err != nil || claim == nil {
		return err
	}
	_, err = r.apply(ctx, v, inUse(v, reasonClaimThere, fmt.Sprintf("the volume should be deleted, but its claim %s/%s still exists; delete the claim too if its data is not needed",
		claim.Namespace, claim.Name)))
	if err != nil {
		return errors.Join(err, errClaimThere)
	}
	return errClaimThere
}

// confirmIdle checks live that the record is as in the cache, and that the volume is not staged
// anywhere. Storage must not be destroyed under a mount.
func (r *reconciler) confirmIdle(ctx context.Context, v *View) error {
	if err := r.runner.Do(ctx, action.Confirm{Object: v.Record}); err != nil {
		return err
	}
	stages := &tarnv1.PavStageList{}
	if err := r.reader.List(ctx, stages, client.MatchingFields{"spec.volumeName": v.Record.Name}); err != nil {
		return fmt.Errorf("listing the stages of volume %s: %w", v.Record.Name, err)
	}
	if slices.ContainsFunc(stages.Items, func(s tarnv1.PavStage) bool { return !s.Void() }) {
		return kube.ErrStale
	}
	return nil
}

// confirmSole checks whether another volume has the handle to delete. If shared is true, the
// deletion must wait for an event of the other volume, or ends.
func (r *reconciler) confirmSole(ctx context.Context, v *View) (shared bool, err error) {
	handle := cmp.Or(v.Record.Status.Handle, steppod.DefaultHandle(v.Record))
	holders, err := r.handles.Holders(ctx, v.Record.Spec.Provisioner.Name, handle, v.Name)
	if err != nil {
		return false, err
	}
	p, shared := sharedHandle(v, handle, holders, r.clock.Now())
	_, err = r.apply(ctx, v, p)
	return shared, err
}

// destroy begins a deletion attempt, or repeats the current one if its pod is not in the cache.
func (r *reconciler) destroy(ctx context.Context, v *View, attempt int32) (more bool, err error) {
	if v.Record.Status.Phase == tarnv1.VolumeDeleting {
		if err := r.confirmReleased(ctx, v); err != nil {
			return false, err
		}
	}
	if err := r.confirmIdle(ctx, v); err != nil {
		return false, err
	}
	if shared, err := r.confirmSole(ctx, v); err != nil || shared {
		return false, err
	}
	if copied, err := r.confirmUncopied(ctx, v); err != nil || copied {
		return false, err
	}
	gone, err := r.lostNode(ctx, v)
	if err != nil {
		return false, err
	}
	if gone != "" && (v.Record.Status.Phase == tarnv1.VolumeUndoing || v.Record.DeletionTimestamp != nil) { // needs no valid deletion section
		return r.apply(ctx, v, withoutNode(v, gone, r.clock.Now()))
	}
	prepared, err := r.prepareDeletion(ctx, v, attempt)
	if err != nil {
		return r.failDeletion(ctx, v, err, attempt)
	}
	if prepared.Pod == nil { // nothing to run
		return r.apply(ctx, v, done(v, r.clock.Now()))
	}
	if why, err := r.unbacked(ctx, v, prepared.Pod); err != nil || why != "" {
		if err != nil {
			return false, err
		}
		return r.apply(ctx, v, skipped(v, why, r.clock.Now()))
	}
	if gone != "" {
		return r.apply(ctx, v, withoutNode(v, gone, r.clock.Now()))
	}
	if s := v.Record.Status; s.DeletionAttempts != attempt || s.NextDeletionTime != nil || !s.DeletionStarted || s.PodNamespace != prepared.Pod.Namespace {
		if _, err := r.apply(ctx, v, begunDeletion(v, attempt, prepared.Pod.Namespace)); err != nil {
			return false, err
		}
	}
	if err := r.runner.Do(ctx, action.StartPod{Pod: prepared.Pod}); err != nil {
		return r.failDeletion(ctx, v, err, attempt)
	}
	// A failed creation pod stays, so that its author can read its log, until the next attempt begins
	// or the record is removed.
	return false, r.runner.Do(ctx, action.DiscardPods{Pods: v.podsWith(func(pod *corev1.Pod) bool {
		return pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepDeletion) && pod.Name != prepared.Pod.Name
	})})
}

// failDeletion records a StepError of a deletion; it returns any other error unchanged.
func (r *reconciler) failDeletion(ctx context.Context, v *View, err error, attempt int32) (more bool, _ error) {
	step := steppod.AsStepError(err)
	if step == nil {
		return false, err
	}
	return r.apply(ctx, v, failedDeletion(v, step, attempt, r.clock.Now()))
}

// prepareDeletion evaluates the deletion section, with the current class if an administrator asked
// for that.
func (r *reconciler) prepareDeletion(ctx context.Context, v *View, attempt int32) (*steppod.Prepared, error) {
	record := v.Record
	if !steppod.UndoneWithCurrentClass(record, attempt) {
		return r.steps.PrepareDeletion(ctx, v.Provisioner, record, attempt)
	}
	former, err := classOf(record)
	if err != nil {
		return nil, err
	}
	class, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: former.Name}, &storagev1.StorageClass{})
	if err != nil {
		return nil, err
	}
	if class == nil || class.Provisioner != record.Spec.Provisioner.Name {
		return nil, &steppod.StepError{Step: tarnv1.StepDeletion, Reason: steppod.ReasonInvalid, Message: fmt.Sprintf(
			"StorageClass %q, whose current parameters were asked for, does not exist with provisioner %q; create it, or retry without --current-class",
			former.Name, record.Spec.Provisioner.Name)}
	}
	record = record.DeepCopy()
	if record.Spec.ClassSnapshot.Raw, err = steppod.SnapshotClass(class); err != nil {
		return nil, err
	}
	return r.steps.PrepareDeletion(ctx, v.Provisioner, record, attempt)
}

// finish deletes the claims that were made for the volume, and once they are gone removes the rest.
func (r *reconciler) finish(ctx context.Context, v *View) error {
	if more, err := r.endClaims(ctx, v); err != nil || !more {
		return err
	}
	return r.remove(ctx, v)
}

// remove removes the PersistentVolume, then the record. It removes the deletion pod after the
// record, so that a crash in between does not run the pod again.
func (r *reconciler) remove(ctx context.Context, v *View) error {
	live, err := r.liveVolume(ctx, v)
	if err != nil {
		return err
	}
	if live != nil && live.DeletionTimestamp == nil {
		if err := r.runner.Do(ctx, action.Delete{Object: live, Unchanged: true}); err != nil {
			return err
		}
		if live, err = r.liveVolume(ctx, v); err != nil {
			return err
		}
	}
	return r.removeRecord(ctx, v, live)
}

// keep releases the PersistentVolume of a retained volume, then the record. The record was marked
// first: after a crash in between, only the record says that the storage must be kept.
func (r *reconciler) keep(ctx context.Context, v *View) error {
	live, err := r.liveVolume(ctx, v)
	if err != nil {
		return err
	}
	if live != nil && (live.DeletionTimestamp == nil || v.Volume == nil || live.UID != v.Volume.UID) {
		return kube.ErrStale
	}
	return r.removeRecord(ctx, v, live)
}

// removeRecord releases the PersistentVolume, unless it is gone, and removes the record, then its
// pods.
func (r *reconciler) removeRecord(ctx context.Context, v *View, live *corev1.PersistentVolume) error {
	var first []action.Action
	if live != nil {
		first = append(first, action.RemoveFinalizer{Object: live, Name: volume.FinalizerExternal})
	}
	if v.Record.DeletionTimestamp == nil {
		first = append(first, action.Delete{Object: v.Record})
	}
	if err := r.runner.Do(ctx, first...); err != nil {
		return err
	}
	record, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Record), &tarnv1.PavVolume{})
	if err != nil || record == nil || record.UID != v.Record.UID {
		return err
	}
	return r.runner.Do(ctx, action.RemoveFinalizer{Object: record, Name: tarnv1.FinalizerRecord}, action.DiscardPods{Pods: v.Pods})
}
