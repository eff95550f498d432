package plugin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
)

// leftBehind makes a volume one whose claim ns/data is gone.
func leftBehind(vol *corev1.PersistentVolume) {
	vol.DeletionTimestamp, vol.Status.Phase = nil, corev1.VolumeReleased
	vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "u1"}
}

// look reconciles, and returns the volume afterwards; nil if it is gone.
func look(t *testing.T, r *reconciler) (*corev1.PersistentVolume, error) {
	t.Helper()
	_, failed := r.Reconcile(t.Context(), request("pvc-u1"))
	vol := &corev1.PersistentVolume{}
	switch err := r.reader.Get(t.Context(), client.ObjectKey{Name: "pvc-u1"}, vol); {
	case client.IgnoreNotFound(err) != nil:
		t.Fatal(err)
	case err != nil:
		return nil, failed
	}
	return vol, failed
}

func TestAFailedDeletionIsWrittenOncePerReasonAndEndsWithTheVolume(t *testing.T) {
	r, f, recorder := toGo(t, leftBehind)
	version := ""
	for i, c := range []struct {
		broken        error
		phase         corev1.PersistentVolumePhase
		message, told string
		written       bool
	}{
		{fmt.Errorf("%w: by a mount", plugin.ErrInUse), corev1.VolumeReleased, "", "Normal VolumeDelete", false},
		{errors.New("the disk is gone"), corev1.VolumeFailed, "the disk is gone", "Warning VolumeFailedDelete the disk is gone", true},
		{errors.New("the disk is gone"), corev1.VolumeFailed, "the disk is gone", "Warning VolumeFailedDelete the disk is gone", false},
		{errors.New("the disk is slow"), corev1.VolumeFailed, "the disk is slow", "Warning VolumeFailedDelete the disk is slow", true},
		{fmt.Errorf("%w: by a mount", plugin.ErrInUse), corev1.VolumeFailed, "the disk is slow", "Normal VolumeDelete", false},
	} {
		f.Break(plugintest.Delete, c.broken)
		vol, err := look(t, r)
		if !errors.Is(err, c.broken) || vol == nil || vol.Status.Phase != c.phase || vol.Status.Message != c.message {
			t.Fatalf("try %d: %v, the volume is %+v, want %s with %q", i, err, vol, c.phase, c.message)
		}
		if written := vol.ResourceVersion != version; i > 0 && written != c.written {
			t.Errorf("try %d: written %t, want %t", i, written, c.written)
		}
		version = vol.ResourceVersion
		if told := <-recorder.Events; !strings.HasPrefix(told, c.told) {
			t.Errorf("try %d: told %q, want %q", i, told, c.told)
		}
	}
	f.Break(plugintest.Delete, nil)
	if vol, err := look(t, r); err != nil || vol != nil {
		t.Errorf("mended: %v, the volume is %+v, want it gone", err, vol)
	}
}

func TestThePhaseOfAVolumeThatNobodyReleasedIsTheBinders(t *testing.T) {
	r, f, _ := toGo(t, func(vol *corev1.PersistentVolume) { vol.Status.Phase = corev1.VolumeAvailable })
	broken := errors.New("the disk is gone")
	f.Break(plugintest.Delete, broken)
	if vol, err := look(t, r); !errors.Is(err, broken) || vol == nil || vol.Status.Phase != corev1.VolumeAvailable {
		t.Errorf("%v, the volume is %+v, want it Available still", err, vol)
	}
}

func TestAClaimThatMerelyNamesAVolumeWhoseDeletionHasFailedDoesNotKeepIt(t *testing.T) {
	for phase, kept := range map[corev1.PersistentVolumeClaimPhase]bool{corev1.ClaimPending: false, corev1.ClaimBound: true} {
		t.Run(string(phase), func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "else", Name: "where", UID: "u2"}}
			claim.Spec.VolumeName, claim.Status.Phase = "pvc-u1", phase
			r, f, _ := toGo(t, func(vol *corev1.PersistentVolume) {
				leftBehind(vol)
				vol.Status.Phase, vol.Status.Reason, vol.Status.Message = corev1.VolumeFailed, eventDeleteFailed, "the disk is gone"
			}, claim)
			vol, err := look(t, r)
			if kept != errors.Is(err, errClaimThere) || (vol != nil) != kept || len(f.Names()) > 0 != kept {
				t.Errorf("%v, the volume is %+v, the storage has %q; want it kept: %t", err, vol, f.Names(), kept)
			}
		})
	}
}

func TestWhatIsWrittenOfAFailedDeletionDoesNotWakeTheNextTry(t *testing.T) {
	released := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-u1", ResourceVersion: "1"}}
	leftBehind(released)
	with := func(from *corev1.PersistentVolume, edit func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		vol := from.DeepCopy()
		vol.ResourceVersion, vol.ManagedFields = vol.ResourceVersion+"0", []metav1.ManagedFieldsEntry{{Manager: vol.ResourceVersion}}
		edit(vol)
		return vol
	}
	failed := func(message string) func(*corev1.PersistentVolume) {
		return func(vol *corev1.PersistentVolume) {
			vol.Status.Phase, vol.Status.Reason, vol.Status.Message = corev1.VolumeFailed, eventDeleteFailed, message
		}
	}
	gone := with(released, failed("gone"))
	for _, c := range []struct {
		name     string
		old, now *corev1.PersistentVolume
		want     bool
	}{
		{"it failed", released, gone, false},
		{"it failed for another reason", gone, with(gone, failed("slow")), false},
		{"its policy was changed", gone, with(gone, func(vol *corev1.PersistentVolume) { vol.Spec.PersistentVolumeReclaimPolicy = "Retain" }), true},
		{"an annotation was set", gone, with(gone, func(vol *corev1.PersistentVolume) { vol.Annotations = map[string]string{"a": "b"} }), true},
		{"it is deleted", gone, with(gone, func(vol *corev1.PersistentVolume) { vol.DeletionTimestamp = &deletedAt }), true},
		{"it is released again", gone, with(gone, func(vol *corev1.PersistentVolume) { vol.Status.Phase = corev1.VolumeReleased }), true},
		{"others call it failed", released, with(released, func(vol *corev1.PersistentVolume) { vol.Status.Phase = corev1.VolumeFailed }), true},
	} {
		if got := ofOthers.Update(event.UpdateEvent{ObjectOld: c.old, ObjectNew: c.now}); got != c.want {
			t.Errorf("%s: woken %t, want %t", c.name, got, c.want)
		}
	}
}

// This is the state after a failover: the directory is intact, and waits for a controller on
// its node.
func TestAVolumeOfAnotherNodeIsNotCalledFailed(t *testing.T) {
	r, _, _ := toGo(t, func(vol *corev1.PersistentVolume) {
		leftBehind(vol)
		metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationNode, "another")
	})
	vol, err := look(t, r)
	if !errors.Is(err, errElsewhere) || vol == nil || vol.Status.Phase != corev1.VolumeReleased {
		t.Errorf("%v, the volume is %+v, want it Released", err, vol)
	}
}
