package provision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/podvol"
)

// decideDisputed waits for a person: for the end of the claim, or for somebody to delete
// the record, upon which a claim that is still there gets a new one. Whatever the
// creation made under the handle of another volume is left alone.
func decideDisputed(v *View) Plan {
	if !needed(v) {
		return Plan{Act: ActDrop}
	}
	status, last := v.Record.Status.DeepCopy(), v.Record.Status.LastError
	if last == nil || !say(status, v.Record, last.Reason, last.Message) {
		return Plan{Act: ActNone}
	}
	return Plan{Act: ActStatus, Status: status, Warning: last.Message, Cause: last.Reason} // reclaim found it
}

// disputed is the status of a record whose creation gave the handle of another volume.
func disputed(record *tarnv1.PavVolume, holder string, now time.Time) *tarnv1.PavVolumeStatus {
	err := podvol.HandleTaken(record, holder)
	status := record.Status.DeepCopy()
	status.Phase = tarnv1.VolumeDisputed
	status.LastError = err.Recorded(nil, now)
	say(status, record, err.Reason, err.Message)
	return status
}

// dispute leaves a volume to a person to decide about. A PersistentVolume that was
// written before a crash has been handed over, and stays.
func (r *reconciler) dispute(ctx context.Context, v *View, holder string) error {
	vol, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if vol != nil && isOf(vol, v.Record) {
		v.Volume = vol
		return nil
	}
	if err := r.writeStatus(ctx, v, disputed(v.Record, holder, r.clock.Now())); err != nil {
		return err
	}
	r.warn(v, podvol.ReasonHandleTaken, v.Record.Status.LastError.Message)
	return nil
}
