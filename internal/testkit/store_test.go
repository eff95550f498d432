package testkit

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAFailedWriteIsMadeOrNotAsTheTestSays(t *testing.T) {
	errKilled := errors.New("killed")
	for _, made := range []bool{false, true} {
		store := Store().Build()
		writes := &Writes{Fail: func(_ int, now bool) error {
			if now == made {
				return errKilled
			}
			return nil
		}}
		pod := Pod("ns", "p", Using("data"))
		if err := writes.Wrap(store).Create(t.Context(), pod); !errors.Is(err, errKilled) || writes.Count != 1 {
			t.Errorf("got %v after %d writes", err, writes.Count)
		}
		if there := store.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}) == nil; there != made {
			t.Errorf("the pod is there: %t, want %t", there, made)
		}
	}
}

func TestAStaleClientReadsWhatItHasSeenAndWritesToTheAPIServer(t *testing.T) {
	claim := Claim("ns", "data", "u", "fast")
	record := Record(claim, "fast", tarnv1.VolumeCreated)
	seen, store := Store(record.DeepCopy()).Build(), Store(record.DeepCopy()).Build()
	stale := &Stale{Client: store, Seen: seen}
	if err := stale.Create(t.Context(), Volume(record)); err != nil {
		t.Fatal(err)
	}
	volumes := &corev1.PersistentVolumeList{}
	if err := stale.List(t.Context(), volumes); err != nil || len(volumes.Items) > 0 {
		t.Errorf("it sees %d volumes, %v", len(volumes.Items), err)
	}
	if err := store.List(t.Context(), volumes); err != nil || len(volumes.Items) != 1 {
		t.Errorf("the API server has %d volumes, %v", len(volumes.Items), err)
	}
}
