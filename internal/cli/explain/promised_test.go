package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// promised marks the world's claim as one for which Tarn's own provisioner creates a volume.
func promised(w *world) { w.claim.Finalizers = append(w.claim.Finalizers, tarnv1.FinalizerInProcess) }

func TestATerminatingClaimThatWasPromisedAVolumeSaysHowItsUndoingGoes(t *testing.T) {
	ending := func(ago time.Duration, changes ...func(*world)) *world {
		w := newWorld()
		promised(w)
		w.claim.DeletionTimestamp = ahead(-ago)
		for _, change := range changes {
			change(w)
		}
		return w
	}
	told := func(kind, reason, message string) func(*world) {
		return func(w *world) { w.event(kind, reason, message) }
	}
	silent := func(w *world) { gaveUp(w) }
	failed := told(corev1.EventTypeWarning, "ProvisioningCleanupFailed", "operation not permitted")
	const undone = "what may have been made for it has to be undone"
	for _, c := range []answer{
		{"what cannot be undone", ending(time.Hour, failed), "what may have been made for it cannot be undone: operation not permitted", "when that is fixed", ""},
		{"what could not be undone, and nobody tries again", ending(time.Hour, failed, silent), "what may have been made for it cannot be undone: operation not permitted", "when tarn controller runs", ""},
		{"what is in use", ending(time.Hour, told(corev1.EventTypeNormal, "VolumeDelete", "a mount lies below it")), "what may have been made for it cannot be undone: a mount lies below it", "when that is fixed", ""},
		{"what was in the way before is not told of what has succeeded since", ending(time.Hour, failed, told(corev1.EventTypeNormal, "ProvisioningSucceeded", "made"), func(w *world) {
			w.claimView.Events[1].LastTimestamp = metav1.NewTime(began.Add(time.Minute))
		}), "what may have been made for it is being undone", "when Tarn has removed what was made", ""},
		{"what is being undone", ending(time.Hour), "what may have been made for it is being undone", "when Tarn has removed what was made", ""},
		{"what nobody undoes", ending(time.Second, silent), undone + ", but no tarn controller runs", "when tarn controller runs", ""},
	} {
		t.Run(c.name, c.check)
	}
}
