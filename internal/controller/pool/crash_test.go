//go:build integration

package pool

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// full expects a set to be Ready with the right number of settled spares of a size.
func (w *world) full(s *tarnv1.PersistentVolumeSet, size string) func() string {
	return func() string {
		w.read(s)
		spares, want := int32(0), s.Spec.MinimumReplicas
		for _, vol := range w.pool() {
			capacity := vol.Spec.Capacity[corev1.ResourceStorage]
			if stateOf(&vol, testNamespace) == spare && !marked(&vol) && capacity.String() == size && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
				spares++
			}
		}
		ready := meta.IsStatusConditionTrue(s.Status.Conditions, tarnv1.ConditionReady)
		if spares != want || !ready || s.Status.UnboundReplicas != want || s.Status.OutdatedReplicas != 0 || s.Status.ObservedGeneration != s.Generation {
			return fmt.Sprintf("%d spares of %s, and the set says %+v", spares, size, s.Status)
		}
		return ""
	}
}

// poolLife fills a pool and deletes it. A drawn one loses a spare to a claim and gets another
// template in between.
type poolLife struct {
	*world
	drawn          bool
	spares         int32
	wantMade, left int
}

// Live implements testkit.Life.
func (l poolLife) Live() {
	w := l.world
	s := w.set(l.spares, l.spares+1)
	w.Eventually("filling", w.full(s, "1Gi"))
	if l.drawn {
		claim := testkit.Claim("default", w.name, "", w.name)
		w.Create(claim)
		w.Eventually("drawing", func() string {
			if w.read(claim); claim.Status.Phase != corev1.ClaimBound {
				return "the claim is " + string(claim.Status.Phase)
			}
			return ""
		})
		w.Eventually("filling again", w.full(s, "1Gi"))
		w.edit(s, func(s *tarnv1.PersistentVolumeSet) {
			s.Spec.MaximumReplicas, s.Spec.Template.Spec.Capacity = 3, testkit.Storage("2Gi")
		})
		w.Eventually("replacing", w.full(s, "2Gi"))
	}
	w.Must(client.IgnoreNotFound(w.Client.Delete(w.Ctx, s)))
	w.Eventually("deleting the set", func() string { return w.Gone(s) })
	w.Eventually("deleting the spares", func() string {
		for _, vol := range w.pool() {
			if vol.Status.Phase != corev1.VolumeBound {
				return vol.Name + " is left"
			}
		}
		return w.Gone(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: fillerClassName(s)}})
	})
}

// Check implements testkit.Life.
func (l poolLife) Check() {
	if left := len(l.pool()); l.made != l.wantMade || left != l.left {
		l.T.Errorf("%d volumes were made and %d are left, want %d and %d", l.made, left, l.wantMade, l.left)
	}
}

func TestAPoolLivesAndEndsWhereverTheControllerIsKilled(t *testing.T) {
	spans := []testkit.Span{{Name: "drawn"}, {Name: "with-consumer"}, {Name: "several"}}
	testkit.AtTheirWrites(t, spans, func(t *testing.T, server *rest.Config, span int, name string) (testkit.Life, *rest.Config) {
		l := poolLife{world: newWorld(t, server, name, span == 1), spares: 1, wantMade: 1}
		switch span {
		case 0:
			l.drawn, l.wantMade, l.left = true, 3, 1
		case 2:
			l.spares, l.wantMade = 2, 2
		}
		return l, server
	})
}

func TestTheAPIServerRefusesSetsThatCannotBe(t *testing.T) {
	c := testkit.Client(t, testkit.APIServer(t))
	for i, refused := range []struct {
		name, want string
		change     func(*tarnv1.PersistentVolumeSet)
	}{
		{"one that can be", "", func(*tarnv1.PersistentVolumeSet) {}},
		{"a minimum above the maximum", "minimumReplicas must not be greater", func(s *tarnv1.PersistentVolumeSet) { s.Spec.MinimumReplicas = 5 }},
		{"a minimum below zero", "minimumReplicas", func(s *tarnv1.PersistentVolumeSet) { s.Spec.MinimumReplicas = -1 }},
		{"no selector", "selector", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Selector = map[string]string{} }},
		{"a template that the selector does not select", "every label of selector", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Metadata.Labels["pool"] = "other" }},
		{"a template without labels", "every label of selector", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Metadata.Labels = nil }},
		{"no capacity", "spec.capacity.storage", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Spec.Capacity = nil }},
		{"a capacity of nothing", "spec.capacity.storage", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Spec.Capacity = testkit.Storage("0") }},
		{"no access mode", "spec.accessModes", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Spec.AccessModes = nil }},
		{"ReadWriteOncePod among others", "ReadWriteOncePod", func(s *tarnv1.PersistentVolumeSet) {
			s.Spec.Template.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
		}},
		{"no class", "spec.storageClassName", func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Spec.StorageClassName = "" }},
		{"a claimRef", "spec.claimRef", func(s *tarnv1.PersistentVolumeSet) {
			s.Spec.Template.Spec.ClaimRef = &corev1.ObjectReference{Name: "a"}
		}},
		{"a volume source", "volume source", func(s *tarnv1.PersistentVolumeSet) {
			s.Spec.Template.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/a"}
		}},
		{"a name too long", "52 characters", func(s *tarnv1.PersistentVolumeSet) { s.Name = strings.Repeat("a", 53) }},
	} {
		t.Run(refused.name, func(t *testing.T) {
			s := set(1, 2, func(s *tarnv1.PersistentVolumeSet) {
				s.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("refused-%d", i)}
			})
			refused.change(s)
			err := c.Create(t.Context(), s, client.DryRunAll)
			if (err == nil) != (refused.want == "") || err != nil && !strings.Contains(err.Error(), refused.want) {
				t.Errorf("got %v, want a refusal with %q", err, refused.want)
			}
		})
	}
	s := set(1, 2, func(s *tarnv1.PersistentVolumeSet) { s.ObjectMeta = metav1.ObjectMeta{Name: "selects"} })
	if err := c.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	s.Spec.Selector = map[string]string{"tier": "1"}
	if err := c.Update(t.Context(), s); err == nil || !strings.Contains(err.Error(), "selector cannot be changed") {
		t.Errorf("a selector that changes: got %v, want a refusal", err)
	}
}
