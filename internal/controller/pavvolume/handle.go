package pavvolume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// planDisputed waits for a user to delete the claim or the record. A claim whose record was deleted
// gets a new one. Data that the creation wrote under another volume's handle is left alone.
func planDisputed(v *View) Plan {
	if !needed(v) {
		return drop(v)
	}
	status, last := v.Record.Status.DeepCopy(), v.Record.Status.LastError
	if last == nil || !sayProvisioned(status, v.Record, last.Reason, last.Message) {
		return Plan{}
	}
	return writes(v, status, warnClaim(v, last.Reason, last.Message)...) // the deletion found the dispute
}

// giveWay plans what follows when other volumes have the handle of a created one. If all of them
// are being deleted, the volume is undone after them and then created again. Otherwise a user must
// decide.
func giveWay(v *View, holders []kube.Holder, now time.Time) Plan {
	i := slices.IndexFunc(holders, func(h kube.Holder) bool { return !h.Going })
	if i < 0 {
		message := steppod.HandleGoing(v.Record.Status.Handle, holders[0])
		p := undo(v, steppod.ReasonHandleGoing, message)
		p.Actions = append(p.Actions, tellClaim(v, corev1.EventTypeNormal, steppod.ReasonHandleGoing, "Wait", message)...)
		return p
	}
	err := steppod.HandleTaken(v.Record, holders[i])
	status := v.Record.Status.DeepCopy()
	status.Phase = tarnv1.VolumeDisputed
	status.LastError = err.Recorded(nil, now)
	sayProvisioned(status, v.Record, err.Reason, err.Message)
	return writes(v, status, warnClaim(v, steppod.ReasonHandleTaken, err.Message)...)
}

// yields checks live whether a volume with the handle that a creation is about to use is being
// deleted. If so, the record waits before the creation pod starts.
func (r *reconciler) yields(ctx context.Context, v *View, handle string) (waits bool, err error) {
	holder, err := r.goingHolder(ctx, v, handle)
	if err != nil || holder == nil {
		return false, err
	}
	_, err = r.apply(ctx, v, yield(v, handle, *holder))
	return true, err
}

// yield plans the wait for another volume. A record in Creating returns to Pending.
func yield(v *View, handle string, holder kube.Holder) Plan {
	status, message := v.Record.Status.DeepCopy(), steppod.HandleGoing(handle, holder)
	status.Handle = handle
	if status.Phase != tarnv1.VolumeValidating {
		status.Phase = tarnv1.VolumePending
		if v.Record.Spec.WaitsForNode { // selected again when the creation continues
			status.NodeName = ""
		}
	}
	if !sayProvisioned(status, v.Record, steppod.ReasonHandleGoing, message) && v.Record.Status.Handle == handle && v.Record.Status.Phase == status.Phase {
		return Plan{}
	}
	return writes(v, status, tellClaim(v, corev1.EventTypeNormal, steppod.ReasonHandleGoing, "Wait", message)...)
}

// goingHolder returns a volume with the handle that is being deleted, nil for none.
func (r *reconciler) goingHolder(ctx context.Context, v *View, handle string) (*kube.Holder, error) {
	if handle == "" { // the claim's UID becomes the handle, or the pod returns one
		return nil, nil
	}
	holders, err := r.handles.Holders(ctx, v.Record.Spec.Provisioner.Name, handle, v.Name)
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
			return Plan{}, false
		}
		message := fmt.Sprintf("%s has volumeHandle %q too, so the deletion pod would delete its data; delete that volume, or set the reclaim policy of this one to Retain", holders[i], handle)
		return undeletable(v, steppod.ReasonHandleTaken, message, warnVolume(v, message)...), true
	}
	if i := slices.IndexFunc(holders, func(h kube.Holder) bool { return !h.Going }); i >= 0 {
		err := steppod.HandleTaken(record, holders[i])
		status := record.Status.DeepCopy()
		status.Phase, status.NextDeletionTime = tarnv1.VolumeDisputed, nil
		status.LastError = err.Recorded(nil, now)
		sayDeletable(status, record, err.Reason, err.Message)
		return writes(v, status, warnVolume(v, err.Message)...), true
	}
	for _, h := range holders {
		if first := cmp.Or(h.Since.Compare(record.CreationTimestamp.Time), cmp.Compare(h.Name, record.Name)) < 0; !h.Undoing || first {
			return undeletable(v, steppod.ReasonHandleGoing, steppod.HandleGoing(handle, h)), true
		}
	}
	return Plan{}, false
}
