//go:build integration

package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tarn.dev/tarn/internal/plugin/plugintest"
)

// unsaved makes the creation of a PersistentVolume fail *times times. carriedOut means that the
// volume is created and only the answer is lost.
func unsaved(w *world, times *int, carriedOut bool) client.Client {
	return interceptor.NewClient(w.Client, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, ok := o.(*corev1.PersistentVolume); !ok || *times == 0 {
			return c.Create(ctx, o, opts...)
		}
		*times--
		if carriedOut {
			if err := c.Create(ctx, o, opts...); err != nil {
				return err
			}
		}
		return errors.New("the connection broke")
	}})
}

func TestCases109And120AVolumeThatCannotBeWrittenIsTriedUntilItCan(t *testing.T) {
	w := newWorld(t, "unsaved")
	r, recorder := w.alone()
	times := 7 // Kubernetes destroys what it made after five failures
	r.client = unsaved(w, &times, false)
	claim := w.claim("data")
	v := w.view(claim)
	w.Must(r.promise(w.Ctx, v))
	told(recorder) // the Event that a volume is being made
	for range 7 {
		if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err == nil {
			t.Fatal("want an error while the volume cannot be written")
		}
		if event := told(recorder); !strings.Contains(event, "writing PersistentVolume "+v.VolumeName) {
			t.Errorf("the claim was told %q", event)
		}
	}
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err != nil || v.Volume == nil {
		t.Fatalf("got %v once it can be written", err)
	}
	if made, left := w.fake.Made(v.VolumeName), w.fake.Names(); made != 1 || len(left) != 1 {
		t.Errorf("storage was made %d times and there is %q, want one", made, left)
	}
}

func TestCase109AVolumeThatWasNeverWrittenIsDestroyedWithItsClaim(t *testing.T) {
	w := newWorld(t, "unsaved-ends")
	r, recorder := w.alone()
	times := 1
	r.client = unsaved(w, &times, false)
	claim := w.claim("data")
	v := w.view(claim)
	w.Must(r.promise(w.Ctx, v))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err == nil {
		t.Fatal("want an error while the volume cannot be written")
	}
	told(recorder)                        // the Event that a volume is being made
	told(recorder)                        // the Event that it cannot be written
	w.Must(w.Client.Delete(w.Ctx, claim)) // the promise keeps it
	w.Must(w.now(v.Claim))
	w.fake.Break(plugintest.Delete, errors.New("the array is busy"))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActUndo}); err == nil {
		t.Fatal("want an error while the storage cannot be destroyed")
	}
	if event := told(recorder); !strings.Contains(event, eventCleanupFailed) || !strings.Contains(event, "the array is busy") {
		t.Errorf("the claim was told %q, want %s and why", event, eventCleanupFailed)
	}
	w.Must(w.now(v.Claim))
	w.fake.Break(plugintest.Delete, nil)
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActUndo}); err != nil {
		t.Fatal(err)
	}
	if event := told(recorder); strings.Contains(event, eventCleanupFailed) {
		t.Errorf("a cleanup that worked was told as %q", event)
	}
	if left := w.fake.Names(); len(left) > 0 {
		t.Errorf("the storage has %q, want nothing", left)
	}
	if w.Must(w.now(claim)); promised(claim) {
		t.Error("the claim still has the promise of a volume, which holds it")
	}
}

func TestCases110And120AVolumeThatWasWrittenThoughTheAnswerWasLostIsTaken(t *testing.T) {
	w := newWorld(t, "lost-answer")
	r, _ := w.alone()
	times := 1
	r.client = unsaved(w, &times, true)
	claim := w.claim("data")
	v := w.view(claim)
	w.Must(r.promise(w.Ctx, v))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err == nil {
		t.Fatal("want an error where the answer was lost")
	}
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err != nil || v.Volume == nil {
		t.Fatalf("got %v, want the volume that was written", err)
	}
	if made, left := w.fake.Made(v.VolumeName), w.fake.Names(); made != 1 || len(left) != 1 {
		t.Errorf("storage was made %d times and there is %q, want one", made, left)
	}
}
