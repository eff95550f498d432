//go:build integration

package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

func TestCases131And132ThePolicyHoldsInWhateverOrderThingsAreDeleted(t *testing.T) {
	for _, first := range []string{"volume", "claim"} {
		t.Run(first+" first", func(t *testing.T) {
			w := newWorld(t, "order-"+first)
			w.bind()
			defer w.run(w.config)()
			claim := w.claim("data")
			vol := w.bound(claim)
			order := []client.Object{vol, claim}
			if first == "claim" {
				order = []client.Object{claim, vol}
			}
			for _, o := range order {
				w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, o)))
			}
			w.eventually("the volume to go", w.gone(vol))
			w.check(1, 1)
		})
	}
}

// The retention controller, which would hold the volume, does not run here.
func TestAReleasedVolumeIsKeptByTheRetentionOfItsClassWithoutTheTrash(t *testing.T) {
	w := newWorld(t, "retention", func(c *storagev1.StorageClass) { c.Annotations = map[string]string{tarnv1.AnnotationRetention: "1h"} })
	w.bind()
	defer w.run(w.config)()
	claim := w.claim("data")
	vol := w.bound(claim)
	w.must(w.client.Delete(w.ctx, claim))
	w.eventually("people to be told", func() error {
		told := &eventsv1.EventList{}
		if err := w.client.List(w.ctx, told); err != nil {
			return err
		}
		if !slices.ContainsFunc(told.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == vol.Name && e.Reason == eventRetained && strings.Contains(e.Note, "1h")
		}) {
			return errors.New("no Event says that the volume is kept")
		}
		return nil
	})
	w.must(w.now(vol))
	if left := w.fake.Names(); len(left) != 1 || vol.Status.Phase != corev1.VolumeReleased {
		t.Fatalf("the storage has %q, the volume is %s; want it there, and Released", left, vol.Status.Phase)
	}
	base := vol.DeepCopy()
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRetention, "0s")
	w.must(w.client.Patch(w.ctx, vol, client.MergeFrom(base)))
	w.eventually("the volume to go", w.gone(vol))
	w.check(1, 1)
}

func TestAVolumeWhoseRetentionTheCacheDoesNotHaveYetIsNotDestroyed(t *testing.T) {
	w := newWorld(t, "retention-late")
	r, _ := w.alone()
	v := w.released(r, "data")
	class := &storagev1.StorageClass{}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: w.name}, class))
	class.Annotations = map[string]string{tarnv1.AnnotationRetention: "1h"}
	w.must(w.client.Update(w.ctx, class))
	if _, err := r.apply(w.ctx, v, Plan{Act: ActDelete}); !errors.Is(err, kube.ErrStale) || w.fake.Deleted(v.VolumeName) > 0 {
		t.Errorf("got %v, destroyed %d times, want kube.ErrStale and none", err, w.fake.Deleted(v.VolumeName))
	}
}

func TestAVolumeOutlivesItsClearedClaimRefAsLongAsItsClaim(t *testing.T) {
	w := newWorld(t, "cleared")
	defer w.run(w.config)()
	claim := w.claim("data")
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volumeName(claim.UID)}}
	w.eventually("claim and volume to be bound", func() error {
		w.bindOnce(w.ctx)
		if err := errors.Join(w.now(vol), w.now(claim)); err != nil || vol.Status.Phase != corev1.VolumeBound || promised(claim) {
			return fmt.Errorf("the volume is %s, the claim's finalizers %q (%w)", vol.Status.Phase, claim.Finalizers, err)
		}
		return nil
	})

	w.must(w.client.Delete(w.ctx, vol)) // it waits for its claim
	w.must(w.now(vol))
	vol.Spec.ClaimRef = nil
	w.must(w.client.Update(w.ctx, vol))
	vol.Status.Phase = corev1.VolumeAvailable // as a binder says before it repairs that
	w.must(w.client.Status().Update(w.ctx, vol))
	w.eventually("people to be told", func() error {
		told := &eventsv1.EventList{}
		if err := w.client.List(w.ctx, told); err != nil {
			return err
		}
		if !slices.ContainsFunc(told.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == vol.Name && e.Reason == eventDeleteFailed && strings.Contains(e.Note, claim.Name)
		}) {
			return errors.New("no Event names the claim")
		}
		return nil
	})
	if left := w.fake.Names(); len(left) != 1 {
		t.Fatalf("the storage has %q, want the volume of the claim", left)
	}

	w.must(w.client.Delete(w.ctx, claim))
	w.eventually("claim and volume to go", func() error {
		if w.now(claim) == nil {
			w.unprotect(w.ctx, claim)
		}
		if w.now(vol) == nil {
			w.unprotect(w.ctx, vol)
		}
		return errors.Join(w.gone(claim)(), w.gone(vol)())
	})
	w.check(1, 1)
}
