package provision

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// decideDisputed waits for a user to delete the claim or the record. A claim whose record was
// deleted gets a new one. Data that the creation wrote under another volume's handle is left alone.
func decideDisputed(v *View) Plan {
	if !needed(v) {
		return Plan{Act: ActDrop}
	}
	status, last := v.Record.Status.DeepCopy(), v.Record.Status.LastError
	if last == nil || !say(status, v.Record, last.Reason, last.Message) {
		return Plan{Act: ActNone}
	}
	return Plan{Act: ActStatus, Status: status, Warning: last.Message, Cause: last.Reason} // reclaim found the dispute
}

// disputed is the status of a record whose creation returned the handle of another volume.
func disputed(record *tarnv1.PavVolume, holder kube.Holder, now time.Time) *tarnv1.PavVolumeStatus {
	err := steppod.HandleTaken(record, holder)
	status := record.Status.DeepCopy()
	status.Phase = tarnv1.VolumeDisputed
	status.LastError = err.Recorded(nil, now)
	say(status, record, err.Reason, err.Message)
	return status
}

// giveWay handles a created volume whose handle other volumes have. If all of them are being
// deleted, it has the volume undone after them and then created again. Otherwise a user must
// decide. A PersistentVolume written before a crash has been handed over, and stays.
func (r *reconciler) giveWay(ctx context.Context, v *View, holders []kube.Holder) error {
	vol, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if vol != nil && isOf(vol, v.Record) {
		v.Volume = vol
		return nil
	}
	if i := slices.IndexFunc(holders, func(h kube.Holder) bool { return !h.Going }); i >= 0 {
		if err := r.writeStatus(ctx, v, disputed(v.Record, holders[i], r.clock.Now())); err != nil {
			return err
		}
		r.warn(v, steppod.ReasonHandleTaken, v.Record.Status.LastError.Message)
		return nil
	}
	message := steppod.HandleGoing(v.Record.Status.Handle, holders[0])
	if err := r.writeStatus(ctx, v, undo(v, steppod.ReasonHandleGoing, message).Status); err != nil {
		return err
	}
	r.tellWait(v, message)
	return nil
}

// yields checks live whether a volume with the handle that a creation is about to use is being
// deleted. If so, it makes the record wait before the creation pod starts. A record in Creating
// returns to Pending.
func (r *reconciler) yields(ctx context.Context, v *View, handle string) (bool, error) {
	holder, err := r.goingHolder(ctx, v, handle)
	if err != nil || holder == nil {
		return false, err
	}
	status, message := v.Record.Status.DeepCopy(), steppod.HandleGoing(handle, *holder)
	status.Handle = handle
	if status.Phase != tarnv1.VolumeValidating {
		status.Phase = tarnv1.VolumePending
		if v.Record.Spec.WaitsForNode { // selected again when the creation continues
			status.NodeName = ""
		}
	}
	if !say(status, v.Record, steppod.ReasonHandleGoing, message) && v.Record.Status.Handle == handle && v.Record.Status.Phase == status.Phase {
		return true, nil
	}
	if err := r.writeStatus(ctx, v, status); err != nil {
		return true, err
	}
	r.tellWait(v, message)
	return true, nil
}

// goingHolder returns a volume with the handle that is being deleted, nil for none.
func (r *reconciler) goingHolder(ctx context.Context, v *View, handle string) (*kube.Holder, error) {
	if handle == "" { // the claim's UID becomes the handle, or the pod returns one
		return nil, nil
	}
	holders, err := r.handles.Holders(ctx, v.Record.Spec.Provisioner.Name, handle, v.VolumeName)
	if err != nil {
		return nil, err
	}
	for i := range holders {
		if holders[i].Going {
			return &holders[i], nil
		}
	}
	return nil, nil
}

// waitsForHandle says whether a record waits until another volume releases its handle.
func waitsForHandle(record *tarnv1.PavVolume) bool {
	c := meta.FindStatusCondition(record.Status.Conditions, tarnv1.ConditionProvisioned)
	return c != nil && c.Reason == steppod.ReasonHandleGoing
}

// tellWait posts an Event that says what the claim waits for.
func (r *reconciler) tellWait(v *View, message string) {
	if v.Claim != nil {
		r.events.Eventf(v.Claim, v.Record, corev1.EventTypeNormal, steppod.ReasonHandleGoing, "Wait", "%s", kube.Note(message))
	}
}
