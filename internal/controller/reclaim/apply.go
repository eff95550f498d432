package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// errClaimThere says that an existing claim keeps a volume that should be deleted. No event of the
// volume reports a change of that, so the queue retries.
var errClaimThere = errors.New("the claim of a volume that should be deleted still exists")

// apply carries out a plan. It returns true if the View has changed so that the next plan can
// follow at once.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) (bool, error) {
	switch p.Act {
	case ActStatus, ActUndone:
		if err := r.writeStatus(ctx, v, p.Status); err != nil {
			return false, err
		}
		r.warn(v, cmp.Or(p.WarningReason, eventDeleteFailed), p.Warning)
		r.tell(v, corev1.EventTypeNormal, eventInUse, p.Notice)
		r.tellAs(v, corev1.EventTypeWarning, steppod.EventPodWaiting, p.WaitAction, p.WaitNote)
		return false, nil
	case ActLost:
		return false, r.tellLost(ctx, v, p.Status)
	case ActDelete: // its own event enqueues the record again, with the pods of the new attempt
		if held, err := r.confirmReleased(ctx, v); err != nil || held {
			return false, err
		}
		return false, r.writeStatus(ctx, v, p.Status)
	case ActStop:
		if p.Status != nil {
			if err := r.writeStatus(ctx, v, p.Status); err != nil {
				return false, err
			}
			r.warn(v, eventDeleteFailed, p.Warning)
		}
		return false, r.discard(ctx, p.Stop)
	case ActRun:
		return r.run(ctx, v, p.Attempt)
	case ActDeleted:
		r.warn(v, eventDeleteFailed, p.Warning)
		return false, r.finish(ctx, v)
	case ActKeep:
		return false, r.keep(ctx, v, p.Status)
	case ActForget:
		return false, r.giveUpRecord(ctx, v)
	}
	return false, nil
}

// tellLost records that the PersistentVolume was removed by force, after a live check. A new
// PersistentVolume may be missing only from the cache.
func (r *reconciler) tellLost(ctx context.Context, v *View, status *tarnv1.PavVolumeStatus) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Record.Name}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if live != nil {
		return kube.ErrStale
	}
	return r.writeStatus(ctx, v, status)
}

// confirmReleased checks live what must hold before data is destroyed. The volume is as in the
// cache, and no retention keeps it. Its claim is gone or has another volume. If the volume points
// at no claim, no claim names it. If a claim keeps the volume, the record says so and held is true.
func (r *reconciler) confirmReleased(ctx context.Context, v *View) (held bool, err error) {
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Record.Name}, &corev1.PersistentVolume{})
	if err != nil {
		return false, err
	}
	if (live == nil) != (v.Volume == nil) || live != nil && live.ResourceVersion != v.Volume.ResourceVersion {
		return false, kube.ErrStale
	}
	if live != nil {
		said, err := r.retention(ctx, r.reader, v)
		if err != nil {
			return false, err
		}
		if why, _ := volume.KeptBy(live, said, v.Namespace, r.clock.Now()); why != "" {
			return false, kube.ErrStale
		}
	}
	maker := &corev1.ObjectReference{Namespace: v.Record.Spec.Claim.Namespace, Name: v.Record.Spec.Claim.Name, UID: v.Record.Spec.Claim.UID}
	claim, err := r.claims.Keeping(ctx, v.Record.Name, live, maker)
	if err != nil || claim == nil {
		return false, err
	}
	p := inUse(v, reasonClaimThere, fmt.Sprintf("the volume should be deleted, but its claim %s/%s still exists; delete the claim too if its data is not needed",
		claim.Namespace, claim.Name))
	if p.Status == nil {
		return true, errClaimThere
	}
	if err := r.writeStatus(ctx, v, p.Status); err != nil {
		return true, errors.Join(err, errClaimThere)
	}
	r.tell(v, corev1.EventTypeNormal, eventInUse, p.Notice)
	return true, errClaimThere
}

// run begins a deletion attempt, or repeats the current one if its pod is not in the cache.
func (r *reconciler) run(ctx context.Context, v *View, attempt int32) (bool, error) {
	if v.Record.Status.Phase == tarnv1.VolumeDeleting {
		if held, err := r.confirmReleased(ctx, v); err != nil || held {
			return false, err
		}
	}
	if err := r.confirmIdle(ctx, v); err != nil {
		return false, err
	}
	if shared, err := r.confirmSole(ctx, v); err != nil || shared {
		return false, err
	}
	gone, err := r.nodeGone(ctx, v.Record)
	if err != nil {
		return false, err
	}
	if gone && (v.Record.Status.Phase == tarnv1.VolumeUndoing || v.Record.DeletionTimestamp != nil) { // needs no valid deletion section
		return r.apply(ctx, v, withoutNode(v, r.clock.Now()))
	}
	of, err := r.recordFor(ctx, v.Record, attempt)
	if err != nil {
		return false, r.giveUp(ctx, v, err, attempt)
	}
	prepared, err := r.steps.PrepareDeletion(ctx, v.Provisioner, of, attempt)
	if err != nil {
		return false, r.giveUp(ctx, v, err, attempt)
	}
	if prepared.Pod == nil { // nothing to run
		p := done(v, r.clock.Now())
		return r.apply(ctx, v, p)
	}
	if gone {
		return r.apply(ctx, v, withoutNode(v, r.clock.Now()))
	}
	if s := v.Record.Status; s.DeletionAttempts != attempt || s.NextDeletionTime != nil || !s.DeletionStarted || s.PodNamespace != prepared.Pod.Namespace {
		if err := r.writeStatus(ctx, v, begun(v.Record, attempt, prepared.Pod.Namespace)); err != nil {
			return false, err
		}
	}
	if err := r.steps.Start(ctx, prepared.Pod); err != nil {
		return false, r.giveUp(ctx, v, err, attempt)
	}
	return false, r.discardPods(ctx, v, func(pod *corev1.Pod) bool {
		return pod.Labels[tarnv1.LabelStep] == string(tarnv1.StepDeletion) && pod.Name != prepared.Pod.Name
	})
}

// nodeGone says whether the volume is on a node that is gone, so that no pod can reach its storage.
func (r *reconciler) nodeGone(ctx context.Context, record *tarnv1.PavVolume) (bool, error) {
	if record.Status.NodeName == "" {
		return false, nil
	}
	node, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: record.Status.NodeName}, &corev1.Node{})
	return err == nil && node == nil, err
}

// confirmSole checks whether another volume has the handle to delete. If shared is true, the
// deletion must wait for an event of the other volume, or ends.
func (r *reconciler) confirmSole(ctx context.Context, v *View) (shared bool, err error) {
	record := v.Record
	handle := cmp.Or(record.Status.Handle, steppod.DefaultHandle(record))
	holders, err := r.handles.Holders(ctx, record.Spec.Provisioner.Name, handle, record.Name)
	if err != nil {
		return false, err
	}
	p, shared := sharedHandle(v, handle, holders, r.clock.Now())
	if p.Status == nil {
		return shared, nil
	}
	if err := r.writeStatus(ctx, v, p.Status); err != nil {
		return true, err
	}
	r.warn(v, eventDeleteFailed, p.Warning)
	return true, nil
}

// confirmIdle checks live that the record is as in the cache, and that the volume is not staged
// anywhere. Storage must not be destroyed under a mount.
func (r *reconciler) confirmIdle(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Record), &tarnv1.PavVolume{})
	if err != nil {
		return err
	}
	if live == nil || live.ResourceVersion != v.Record.ResourceVersion {
		return kube.ErrStale
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

func (r *reconciler) giveUp(ctx context.Context, v *View, err error, attempt int32) error {
	step := steppod.AsStepError(err)
	if step == nil {
		return err
	}
	if err := r.writeStatus(ctx, v, failed(v, step, attempt, r.clock.Now())); err != nil {
		return err
	}
	r.warn(v, eventDeleteFailed, step.Message)
	return nil
}

// finish removes the PersistentVolume, then the record. It removes the deletion pod after the
// record, so that a crash in between does not run the pod again.
func (r *reconciler) finish(ctx context.Context, v *View) error {
	if err := r.removeVolume(ctx, v); err != nil {
		return err
	}
	return r.dropRecord(ctx, v)
}

// keep releases the PersistentVolume of a retained volume, then the record. It marks the record
// first: after a crash in between, only the record says that the storage must be kept.
func (r *reconciler) keep(ctx context.Context, v *View, mark *tarnv1.PavVolumeStatus) error {
	if mark != nil {
		if err := r.writeStatus(ctx, v, mark); err != nil {
			return err
		}
	}
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Record.Name}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if live != nil && (live.DeletionTimestamp == nil || v.Volume == nil || live.UID != v.Volume.UID) {
		return kube.ErrStale
	}
	if live != nil {
		if err := kube.RemoveFinalizer(ctx, r.client, live, kube.FinalizerExternalProvisioner); err != nil {
			return err
		}
	}
	return r.dropRecord(ctx, v)
}

// forget releases a PersistentVolume of Tarn whose record was removed by force. No record says any
// more how to delete its storage, so keeping the object gains nothing.
func (r *reconciler) forget(ctx context.Context, v *View) error {
	vol := v.Volume
	if vol == nil || vol.DeletionTimestamp == nil || vol.Annotations[tarnv1.AnnotationRecord] == "" || vol.Status.Phase == corev1.VolumeBound ||
		!controllerutil.ContainsFinalizer(vol, kube.FinalizerExternalProvisioner) {
		return nil
	}
	record, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(vol), &tarnv1.PavVolume{})
	if err != nil || record != nil {
		return err
	}
	if err := kube.RemoveFinalizer(ctx, r.client, vol.DeepCopy(), kube.FinalizerExternalProvisioner); err != nil {
		return err
	}
	r.events.Eventf(vol, nil, corev1.EventTypeWarning, eventDeleteFailed, "Forget",
		"the PavVolume of this volume was removed by force, so its storage is not deleted; delete %q of %q by hand", vol.Spec.CSI.VolumeHandle, vol.Spec.CSI.Driver)
	return nil
}

func (r *reconciler) removeVolume(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Record.Name}, &corev1.PersistentVolume{})
	if err != nil || live == nil {
		return err
	}
	if live.DeletionTimestamp == nil {
		err := r.client.Delete(ctx, live, client.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting PersistentVolume %s: %w", live.Name, err)
		}
		if live, err = kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Record.Name}, &corev1.PersistentVolume{}); err != nil || live == nil {
			return err
		}
	}
	return kube.RemoveFinalizer(ctx, r.client, live, kube.FinalizerExternalProvisioner)
}

func (r *reconciler) dropRecord(ctx context.Context, v *View) error {
	err := r.client.Delete(ctx, v.Record.DeepCopy(), client.Preconditions{UID: &v.Record.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PavVolume %s: %w", v.Record.Name, err)
	}
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Record), &tarnv1.PavVolume{})
	if err != nil || live == nil || live.UID != v.Record.UID {
		return err
	}
	if err := kube.RemoveFinalizer(ctx, r.client, live, tarnv1.FinalizerRecord); err != nil {
		return err
	}
	return r.discardPods(ctx, v, func(*corev1.Pod) bool { return true })
}

// discardPods removes the record's pods that match. A failed creation pod stays, so that its author
// can read its log, until the next attempt begins or the record is removed.
func (r *reconciler) discardPods(ctx context.Context, v *View, those func(*corev1.Pod) bool) error {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.MatchingLabels{tarnv1.LabelRecord: string(v.Record.UID)}); err != nil {
		return fmt.Errorf("listing the pods of PavVolume %s: %w", v.Record.Name, err)
	}
	return r.discard(ctx, slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !those(&pod) }))
}

func (r *reconciler) discard(ctx context.Context, pods []corev1.Pod) error {
	for i := range pods {
		if err := r.steps.Discard(ctx, &pods[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, v *View, status *tarnv1.PavVolumeStatus) error {
	record := v.Record.DeepCopy()
	record.Status = *status
	if err := r.client.Status().Update(ctx, record); err != nil {
		return fmt.Errorf("writing the status of PavVolume %s: %w", record.Name, err)
	}
	v.Record = record
	return nil
}

// warn posts a Warning.
func (r *reconciler) warn(v *View, reason, message string) {
	r.tell(v, corev1.EventTypeWarning, reason, message)
}

// tell posts an Event about the volume and about the record, as users look at both.
func (r *reconciler) tell(v *View, kind, reason, message string) {
	// Events that differ only in their text are merged under the first text, so each attempt has
	// its own action.
	r.tellAs(v, kind, reason, fmt.Sprintf("DeleteAttempt%d", v.Record.Status.DeletionAttempts), message)
}

func (r *reconciler) tellAs(v *View, kind, reason, action, message string) {
	if message == "" {
		return
	}
	if v.Volume != nil {
		r.events.Eventf(v.Volume, v.Record, kind, reason, action, "%s", kube.Note(message))
	}
	r.events.Eventf(v.Record, nil, kind, reason, action, "%s", kube.Note(message))
}
