//go:build integration

package plugin

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
			defer w.run(w.Config)()
			claim := w.claim("data")
			vol := w.bound(claim)
			order := []client.Object{vol, claim}
			if first == "claim" {
				order = []client.Object{claim, vol}
			}
			for _, o := range order {
				w.Must(client.IgnoreNotFound(w.Client.Delete(w.Ctx, o)))
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
	defer w.run(w.Config)()
	claim := w.claim("data")
	vol := w.bound(claim)
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.saying(vol, eventRetained, "1h")
	w.Must(w.now(vol))
	if left := w.fake.Names(); len(left) != 1 || vol.Status.Phase != corev1.VolumeReleased {
		t.Fatalf("the storage has %q, the volume is %s; want it there, and Released", left, vol.Status.Phase)
	}
	base := vol.DeepCopy()
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRetention, "0s")
	w.Must(w.Client.Patch(w.Ctx, vol, client.MergeFrom(base)))
	w.eventually("the volume to go", w.gone(vol))
	w.check(1, 1)
}

func TestAVolumeWhoseRetentionTheCacheDoesNotHaveYetIsNotDestroyed(t *testing.T) {
	w := newWorld(t, "retention-late")
	r, _ := w.alone()
	v := w.released(r, "data")
	class := &storagev1.StorageClass{}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Name: w.name}, class))
	class.Annotations = map[string]string{tarnv1.AnnotationRetention: "1h"}
	w.Must(w.Client.Update(w.Ctx, class))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActDelete}); !errors.Is(err, kube.ErrStale) || w.fake.Deleted(v.VolumeName) > 0 {
		t.Errorf("got %v, destroyed %d times, want kube.ErrStale and none", err, w.fake.Deleted(v.VolumeName))
	}
}

func TestAVolumeOutlivesItsClearedClaimRefAsLongAsItsClaim(t *testing.T) {
	w := newWorld(t, "cleared")
	defer w.run(w.Config)()
	claim := w.claim("data")
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volumeName(claim.UID)}}
	w.eventually("claim and volume to be bound", func() error {
		w.Must(w.bindOnce())
		if err := errors.Join(w.now(vol), w.now(claim)); err != nil || vol.Status.Phase != corev1.VolumeBound || promised(claim) {
			return fmt.Errorf("the volume is %s, the claim's finalizers %q (%w)", vol.Status.Phase, claim.Finalizers, err)
		}
		return nil
	})

	w.Must(w.Client.Delete(w.Ctx, vol)) // it waits for its claim
	w.Must(w.now(vol))
	vol.Spec.ClaimRef = nil
	w.Must(w.Client.Update(w.Ctx, vol))
	vol.Status.Phase = corev1.VolumeAvailable // as a binder says before it repairs that
	w.Must(w.Client.Status().Update(w.Ctx, vol))
	w.saying(vol, eventDeleteFailed, claim.Name)
	if left := w.fake.Names(); len(left) != 1 {
		t.Fatalf("the storage has %q, want the volume of the claim", left)
	}

	w.Must(w.Client.Delete(w.Ctx, claim))
	w.eventually("claim and volume to go", func() error {
		for _, o := range []client.Object{claim, vol} {
			if w.now(o) == nil {
				w.Release(o, "kubernetes.io/")
			}
		}
		return errors.Join(w.gone(claim)(), w.gone(vol)())
	})
	w.check(1, 1)
}
