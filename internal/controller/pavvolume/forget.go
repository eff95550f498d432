package pavvolume

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of a forgotten PavVolume, and its Events.
const (
	// reasonInUse: the record cannot be forgotten, because the volume has a claim. Delete the
	// claim first.
	reasonInUse = "VolumeInUse"
	// eventForgotten: the record was given up. The message names the storage that stays behind.
	eventForgotten = "VolumeForgotten"
)

// planForgotten removes a record that an administrator gave up, in any phase. It stops the record's
// pods first, as they may be working on the storage. It does not give up a volume that a claim has.
func planForgotten(v *View, now time.Time) Plan {
	pods := v.podsWith(func(pod *corev1.Pod) bool { return !steppod.Ended(pod) }) // v.Pod may be another record's
	switch vol := v.Volume; {
	case vol != nil && !released(vol):
		return inUse(v, reasonInUse, "the record was to be forgotten, but its PersistentVolume is not Released; delete its claim first")
	case vol != nil && volume.DeletionProtected(vol):
		return protected(v)
	case len(v.Stages) > 0:
		return staged(v)
	case len(pods) > 0:
		return stop(v, pods, now)
	}
	return Plan{Act: ActForget}
}

// forget removes PersistentVolume and record. It checks live first, for a volume that was written,
// staged or bound a moment ago.
func (r *reconciler) forget(ctx context.Context, v *View) error {
	if err := r.confirmIdle(ctx, v); err != nil {
		return err
	}
	if _, err := r.confirmVolume(ctx, v); err != nil {
		return err
	}
	if err := r.remove(ctx, v); err != nil {
		return err
	}
	return r.runner.Do(ctx, tellVolume(v, corev1.EventTypeWarning, eventForgotten, "Forget",
		fmt.Sprintf("PavVolume %s was forgotten: %s", v.Record.Name, steppod.GivenUp(v.Record)))...)
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
