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

// hold puts the finalizer on a volume, so that whoever deletes its object first, the
// storage goes too.
func (r *reconciler) hold(ctx context.Context, vol *corev1.PersistentVolume) error {
	changed := vol.DeepCopy()
	controllerutil.AddFinalizer(changed, volume.FinalizerExternal)
	if err := client.IgnoreNotFound(r.patch(ctx, changed, vol)); err != nil {
		return fmt.Errorf("adding finalizer %s to PersistentVolume %s: %w", volume.FinalizerExternal, vol.Name, err)
	}
	return nil
}

// delete destroys a released volume, then its PersistentVolume. After a crash in
// between the storage is found gone, which is no error.
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
		if at == "" { // written by hand, or restored without it
			err = fmt.Errorf("the volume does not name the node that it is on; set annotation %s to the name of that node, which may be %q", tarnv1.AnnotationNode, v.Plugin.Node)
		}
		r.warn(v.Volume, eventDeleteFailed, "Delete", err)
		return err
	}
	return r.destroy(ctx, v, madeVolume(v.Volume), v.Volume, eventDeleteFailed)
}

// fail says in the status of a released volume why its storage could not be destroyed,
// where that is not said yet. It writes the version that was judged. Of a volume that is
// Available or Bound, and is being deleted, the phase is the binder's, who would write it
// again at once: that one has its Event alone. What is in use, or was not tried, is no failure.
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

// confirmReleased looks live at what decides that data is destroyed: the volume is as
// the cache had it, no retention keeps it, the claim it was released by is gone, or has got another volume,
// and where it points at no claim, none names it; and no pod is left that was started on it.
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
	if calledFailed(live) { // by which nobody has got it back: who merely names it keeps nothing still
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

// keep tells for whose sake a released volume stays.
func (r *reconciler) keep(v *View, why error, user client.Object) error {
	err := fmt.Errorf("%w: %s/%s; delete that too if its data is not needed", why, user.GetNamespace(), user.GetName())
	r.warn(v.Volume, eventDeleteFailed, "Delete", err)
	return err
}

// removeVolume deletes the PersistentVolume whose storage is gone, and takes the
// finalizer off it.
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
