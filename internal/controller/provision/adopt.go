package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// adoptVolume takes the PersistentVolume that exists already, if it is this claim's
// and stays. Else the claim waits until that one is gone, and is told so.
func (r *reconciler) adoptVolume(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
	switch {
	case err != nil:
		return err
	case live == nil:
		return errStale
	case live.DeletionTimestamp != nil:
		err = fmt.Errorf("PersistentVolume %s exists and is being deleted; waiting until it is gone", v.VolumeName)
	case !isOf(live, v.Record):
		err = fmt.Errorf("PersistentVolume %s exists and belongs to another claim; delete it to go on", v.VolumeName)
	default:
		v.Volume = live
		return nil
	}
	r.warn(v, "Adopt", err.Error())
	status := v.Record.Status.DeepCopy()
	if say(status, v.Record, reasonNameTaken, err.Error()) {
		if wrong := r.writeStatus(ctx, v, status); wrong != nil {
			return wrong
		}
	}
	return err // its end is an event, and it is tried again meanwhile
}
