package provision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// creating is a world whose claim has a creation pod without a node.
func creating(t *testing.T) (*world, *corev1.PersistentVolumeClaim) {
	t.Helper()
	claim := testkit.Claim("ns", "data", "u1", "prov")
	w := newWorld(t, claim, testkit.Record(claim, "prov", tarnv1.VolumePending), testkit.Class("prov"), testkit.Provisioner("prov"))
	for range 2 {
		w.look("u1")
		w.born()
	}
	if pods := w.pods(); len(pods) != 1 || w.record("u1").Status.Phase != tarnv1.VolumeCreating {
		t.Fatalf("%d pods, %+v", len(pods), w.record("u1").Status)
	}
	return w, claim
}

// born sets the pods' creation time, as there is no API server to set it.
func (w *world) born() {
	w.t.Helper()
	for _, pod := range w.pods() {
		pod.CreationTimestamp = metav1.NewTime(now)
		w.must(w.store.Update(w.t.Context(), &pod))
	}
}

// settle reconciles until nothing changes, or the record is gone.
func (w *world) settle() {
	w.t.Helper()
	for range 4 {
		w.look("u1")
	}
}

func TestACreationPodThatNeverRanIsTakenBackWithItsClaim(t *testing.T) {
	w, claim := creating(t)
	w.must(w.store.Delete(t.Context(), claim))
	w.settle()
	if record, pods := w.record("u1"), w.pods(); record != nil || len(pods) > 0 {
		t.Errorf("record %v, %d pods, want none", record, len(pods))
	}
}

func TestACreationPodThatRanIsNotForgottenWhenItIsStartedAgain(t *testing.T) {
	for name, end := range map[string]func(*world, *corev1.PersistentVolumeClaim){
		"and the claim is deleted": func(w *world, claim *corev1.PersistentVolumeClaim) { w.must(w.store.Delete(w.t.Context(), claim)) },
		"and its time is up": func(w *world, _ *corev1.PersistentVolumeClaim) {
			pod := w.pods()[0]
			pod.CreationTimestamp = metav1.NewTime(now.AddDate(0, 0, -1))
			w.must(w.store.Update(w.t.Context(), &pod))
		},
		"and somebody has put his own in its place": func(w *world, claim *corev1.PersistentVolumeClaim) {
			pod := w.pods()[0]
			w.must(w.store.Delete(w.t.Context(), &pod))
			pod.ResourceVersion, pod.Labels, pod.Annotations = "", nil, nil // a user may set nothing else
			w.must(w.store.Create(w.t.Context(), &pod))
			w.must(w.store.Delete(w.t.Context(), claim))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, claim := creating(t)
			first := w.pods()[0]
			first.Spec.NodeName, first.Status.Phase = "n1", corev1.PodRunning // and creates something
			w.must(w.store.Update(t.Context(), &first))
			w.look("u1")
			w.must(w.store.Delete(t.Context(), &first)) // evicted, drained, or its node is gone
			w.look("u1")
			w.born()
			if again := w.pods(); len(again) != 1 || again[0].Name != first.Name || again[0].Spec.NodeName != "" {
				t.Fatalf("started again: %+v", again)
			}
			end(w, claim)
			w.settle()
			if record := w.record("u1"); record == nil || record.Status.Phase != tarnv1.VolumeUndoing {
				t.Errorf("the record is %+v, want it to wait for its deletion pod", record)
			}
		})
	}
}
