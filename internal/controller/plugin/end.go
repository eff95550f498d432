package plugin

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/volume"
)

// hold adds the finalizer to a volume. If the PersistentVolume is deleted first, the storage is
// still destroyed.
func (r *reconciler) hold(ctx context.Context, vol *corev1.PersistentVolume) error {
	changed := vol.DeepCopy()
	controllerutil.AddFinalizer(changed, volume.FinalizerExternal)
	if err := client.IgnoreNotFound(r.patch(ctx, changed, vol)); err != nil {
		return fmt.Errorf("adding finalizer %s to PersistentVolume %s: %w", volume.FinalizerExternal, vol.Name, err)
	}
	return nil
}

// delete destroys a released volume, then its PersistentVolume. If the storage is already gone
// after a crash in between, that is no error.
func (r *reconciler) delete(ctx context.Context, v *View) error {
	if err := r.confirmReleased(ctx, v); err != nil {
		return err
	}
	if err := r.destroyReleased(ctx, v); err != nil {
		return errors.Join(err, r.fail(ctx, v.Volume, err))
	}
	return r.removeVolume(ctx, v.Volume)
}

func (r *reconciler) destroyReleased(ctx context.Context, v *View) error {
	if at := v.Volume.Annotations[tarnv1.AnnotationNode]; at != v.Plugin.Node {
		err := fmt.Errorf("%w: the volume is on node %q, but the controller now runs on node %q; the volume is deleted when the controller runs on its node again", errElsewhere, at, v.Plugin.Node)
		if at == "" { // written by hand, or restored without the annotation
			err = fmt.Errorf("the volume does not name the node that it is on; set annotation %s to the name of that node, which may be %q", tarnv1.AnnotationNode, v.Plugin.Node)
		}
		r.warn(v.Volume, eventDeleteFailed, "Delete", err)
		return err
	}
	return r.destroy(ctx, v, madeVolume(v.Volume), v.Volume, eventDeleteFailed)
}

// fail sets the phase of a released volume to Failed with the cause, unless that is there
// already. It writes against the version that was judged. A volume in use, or not tried, is not
// Failed.
//
// A volume that is Available or Bound while it is being deleted gets only an Event. The binder
// owns its phase and would overwrite it at once.
func (r *reconciler) fail(ctx context.Context, vol *corev1.PersistentVolume, why error) error {
	if errors.Is(why, errUnfinished) || errors.Is(why, errElsewhere) || errors.Is(why, plugin.ErrInUse) || !orphaned(vol) {
		return nil
	}
	message := kube.Message(why.Error())
	if calledFailed(vol) && vol.Status.Message == message {
		return nil
	}
	to := vol.DeepCopy()
	to.Status.Phase, to.Status.Reason, to.Status.Message = corev1.VolumeFailed, eventDeleteFailed, message
	err := r.client.Status().Patch(ctx, to, client.MergeFromWithOptions(vol, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the phase of PersistentVolume %s: %w", vol.Name, err)
	}
	return nil
}

// confirmReleased returns nil if the data of a volume may be destroyed. It reads the following
// from the API server.
//
//   - The volume is as the cache had it.
//   - No retention keeps it.
//   - Its claim is gone or has another volume. Without claimRef, no claim names it.
//   - No pod is left that was started on it.
func (r *reconciler) confirmReleased(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Volume), &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if live == nil || live.UID != v.Volume.UID || live.ResourceVersion != v.Volume.ResourceVersion {
		return kube.ErrStale
	}
	said, err := kube.RetentionOf(ctx, r.reader, live, nil)
	if err != nil {
		return err
	}
	if why, _ := volume.KeptBy(live, said, v.Namespace, r.clock.Now()); why != "" {
		return kube.ErrStale
	}
	if calledFailed(live) { // no claim has got it back with this phase: one that merely names it does not keep it
		live.Status.Phase = corev1.VolumeReleased
	}
	var maker *corev1.ObjectReference
	if c := v.Claim; c != nil {
		maker = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	}
	claim, err := r.claims.Keeping(ctx, live.Name, live, maker)
	if err != nil {
		return err
	}
	if claim != nil {
		return r.keep(v, errClaimThere, claim)
	}
	pod, err := r.claims.Started(ctx, live)
	if err != nil {
		return err
	}
	if pod != nil {
		return r.keep(v, errPodThere, pod)
	}
	return nil
}

// keep reports which object keeps a released volume.
func (r *reconciler) keep(v *View, why error, user client.Object) error {
	err := fmt.Errorf("%w: %s/%s; delete that too if its data is not needed", why, user.GetNamespace(), user.GetName())
	r.warn(v.Volume, eventDeleteFailed, "Delete", err)
	return err
}

// removeVolume deletes the PersistentVolume whose storage is gone, and removes its finalizer.
func (r *reconciler) removeVolume(ctx context.Context, vol *corev1.PersistentVolume) error {
	if vol.DeletionTimestamp == nil {
		err := r.client.Delete(ctx, vol.DeepCopy(), client.Preconditions{UID: &vol.UID, ResourceVersion: &vol.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting PersistentVolume %s: %w", vol.Name, err)
		}
	}
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(vol), &corev1.PersistentVolume{})
	if err != nil || live == nil || live.UID != vol.UID {
		return err
	}
	return kube.RemoveFinalizer(ctx, r.client, live, volume.FinalizerExternal)
}
