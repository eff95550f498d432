package reclaim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of a forgotten PavVolume, and its Events.
const (
	// reasonInUse: the record cannot be forgotten, because the volume has a claim. Delete the
	// claim first.
	reasonInUse = "VolumeInUse"
	// eventForgotten: the record was given up. The message names the storage that stays behind.
	eventForgotten  = "VolumeForgotten"
	actionForgotten = "Forget"
)

// decideForgotten removes a record that an administrator gave up, in any phase. It stops the
// record's pods first, as they may be working on the storage. It does not give up a volume that a
// claim has.
func decideForgotten(v *View, now time.Time) Plan {
	pods := v.Others
	if v.Pod != nil && !steppod.Ended(v.Pod) {
		pods = append(pods[:len(pods):len(pods)], *v.Pod)
	}
	switch vol := v.Volume; {
	case vol != nil && !released(vol):
		return inUse(v, reasonInUse, "the record was to be forgotten, but its PersistentVolume is not Released; delete its claim first")
	case vol != nil && volume.DeletionProtected(vol):
		return protected(v)
	case len(v.Stages) > 0:
		return inUse(v, reasonStaged, fmt.Sprintf("the volume is still staged on node %s", v.Stages[0].Spec.NodeName))
	case len(pods) > 0:
		return stop(v, pods, now)
	}
	return Plan{Act: ActForget}
}

// giveUpRecord removes PersistentVolume and record. It checks live first, for a volume that was
// written, staged or bound a moment ago.
func (r *reconciler) giveUpRecord(ctx context.Context, v *View) error {
	if err := r.confirmIdle(ctx, v); err != nil {
		return err
	}
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.Record.Name}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if (live == nil) != (v.Volume == nil) || live != nil && live.ResourceVersion != v.Volume.ResourceVersion {
		return kube.ErrStale
	}
	if err := r.finish(ctx, v); err != nil {
		return err
	}
	r.tellAs(v, corev1.EventTypeWarning, eventForgotten, actionForgotten, fmt.Sprintf("PavVolume %s was forgotten: %s", v.Record.Name, steppod.GivenUp(v.Record)))
	return nil
}

// retried says whether an administrator asked for the attempt after the current one.
func retried(v *View) bool {
	return steppod.Retried(v.Record, tarnv1.StepDeletion, v.Record.Status.DeletionAttempts)
}

// retriesWaiting says whether a retry was asked for and the deletion pod has not started or does
// not exist. A running pod finishes first.
func retriesWaiting(v *View) bool {
	return retried(v) && (v.Observed.State == steppod.PodAbsent || v.Observed.State == steppod.PodStarting)
}

// recordFor returns the record with which a deletion attempt evaluates its templates.
func (r *reconciler) recordFor(ctx context.Context, record *tarnv1.PavVolume, attempt int32) (*tarnv1.PavVolume, error) {
	if !steppod.UndoneWithCurrentClass(record, attempt) {
		return record, nil
	}
	class := &storagev1.StorageClass{}
	if err := json.Unmarshal(record.Spec.ClassSnapshot.Raw, class); err != nil {
		return nil, fmt.Errorf("reading classSnapshot of PavVolume %s: %w", record.Name, err)
	}
	name := class.Name
	class, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
	if err != nil {
		return nil, err
	}
	if class == nil || class.Provisioner != record.Spec.Provisioner.Name {
		return nil, &steppod.StepError{Step: tarnv1.StepDeletion, Reason: steppod.ReasonInvalid, Message: fmt.Sprintf(
			"StorageClass %q, whose current parameters were asked for, does not exist with provisioner %q; create it, or retry without --current-class",
			name, record.Spec.Provisioner.Name)}
	}
	snapshot, err := steppod.SnapshotClass(class)
	if err != nil {
		return nil, err
	}
	record = record.DeepCopy()
	record.Spec.ClassSnapshot.Raw = snapshot
	return record, nil
}
