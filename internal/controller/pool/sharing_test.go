//go:build integration

package pool

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// madeBy counts the volumes of the world that were made for a set.
func (w *world) madeBy(s *tarnv1.PersistentVolumeSet) int {
	n := 0
	for _, vol := range w.pool() {
		if madeBy(s, &vol) {
			n++
		}
	}
	return n
}

// says waits for a reason in the set's condition Ready, and for its number of spares.
func (w *world) says(s *tarnv1.PersistentVolumeSet, reason string, spares int32) {
	w.T.Helper()
	w.Eventually(s.Name+" to be "+reason, func() string {
		w.read(s)
		ready := meta.FindStatusCondition(s.Status.Conditions, tarnv1.ConditionReady)
		if ready != nil && ready.Reason == reason && s.Status.UnboundReplicas == spares && s.Status.CreatingReplicas == 0 && len(w.pool()) == int(spares) {
			return ""
		}
		return fmt.Sprintf("%+v, but there are %d volumes", s.Status, len(w.pool()))
	})
}

// The controller works on two sets with the same labels at once.
func TestTwoSetsOfTheSameVolumesMakeNoneTooManyAndOneOutlivesTheOther(t *testing.T) {
	server := testkit.OwnAPIServer(t)
	for _, c := range []struct {
		name, orphan string
		least, most  int
	}{
		{"shared-gone", "", 0, 1}, // this one is drawn
		{"shared-kept", "true", 5, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, server, c.name, false)
			stop := w.Run(w.Config)
			defer stop()
			wide := w.set(0, 4, func(s *tarnv1.PersistentVolumeSet) { s.Name += "-wide" })
			w.Eventually("the wide set to be seen", func() string {
				w.read(wide)
				if len(wide.Finalizers) == 0 {
					return "it is not held"
				}
				return ""
			})
			deep := w.set(6, 9, func(s *tarnv1.PersistentVolumeSet) {
				s.Name += "-deep"
				s.Annotations = map[string]string{tarnv1.AnnotationOrphan: c.orphan}
			})
			w.says(deep, reasonAtMaximum, 4)
			w.says(wide, reasonFilled, 4)
			if w.made != 4 || w.madeBy(deep) != 4 {
				t.Errorf("%d volumes were made, want 4", w.made)
			}
			// A change of one set matters to the other, and no other event reports it.
			w.edit(wide, func(s *tarnv1.PersistentVolumeSet) { s.Spec.MaximumReplicas = 5 })
			w.says(deep, reasonAtMaximum, 5)

			w.edit(wide, func(s *tarnv1.PersistentVolumeSet) { s.Spec.MinimumReplicas = 3 })
			claim := testkit.Claim("default", w.name, "", w.name)
			w.Create(claim)
			w.Must(w.Client.Delete(w.Ctx, deep)) // while one of its volumes is drawn
			w.Eventually("the set to be gone", func() string { return w.Gone(deep) })
			w.Eventually("the other to have what it wants", func() string {
				w.read(wide)
				w.read(claim)
				left := w.madeBy(deep)
				if there := len(w.pool()); int(wide.Status.Replicas) != there {
					return fmt.Sprintf("%+v, but there are %d volumes", wide.Status, there) // the count from before the other set was deleted
				}
				if wide.Status.UnboundReplicas < 3 || wide.Status.CreatingReplicas > 0 || wide.Status.Replicas > 5 || claim.Status.Phase != corev1.ClaimBound {
					return fmt.Sprintf("%+v, %d volumes of the other are left, the claim is %s", wide.Status, left, claim.Status.Phase)
				}
				if left < c.least || left > c.most {
					return fmt.Sprintf("%d volumes of the other are left, want %d to %d", left, c.least, c.most)
				}
				return ""
			})
			drawn := &corev1.PersistentVolume{}
			w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, drawn))
			if drawn.DeletionTimestamp != nil || drawn.Spec.ClaimRef == nil || drawn.Spec.ClaimRef.UID != claim.UID {
				t.Errorf("the volume of the claim is %+v", drawn)
			}
		})
	}
}
