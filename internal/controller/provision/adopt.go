package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// adoptVolume uses the PersistentVolume that already exists if it belongs to this claim and is not
// being deleted. Otherwise the claim waits until that volume is gone, and an Event says so.
func (r *reconciler) adoptVolume(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
	switch {
	case err != nil:
		return err
	case live == nil:
		return kube.ErrStale
	case live.DeletionTimestamp != nil:
		err = fmt.Errorf("PersistentVolume %s exists and is being deleted; waiting until it is gone", v.VolumeName)
	case !isOf(live, v.Record):
		err = fmt.Errorf("PersistentVolume %s exists and belongs to another claim; delete it to continue", v.VolumeName)
	default:
		v.Volume = live
		return nil
	}
	return r.unwritten(ctx, v, reasonNameTaken, err)
}

// unwritten reports why a created volume has no PersistentVolume, and returns that error. The
// controller retries until the obstacle is gone.
func (r *reconciler) unwritten(ctx context.Context, v *View, reason string, why error) error {
	r.warn(v, reason, why.Error())
	status := v.Record.Status.DeepCopy()
	if say(status, v.Record, reason, why.Error()) {
		if err := r.writeStatus(ctx, v, status); err != nil {
			return err
		}
	}
	return why
}
