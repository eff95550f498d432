package pool

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// beside builds another set than the view's, with the same label "tier".
func beside(maximum int32, changes ...testkit.With[*tarnv1.PersistentVolumeSet]) tarnv1.PersistentVolumeSet {
	return *set(0, maximum, append([]testkit.With[*tarnv1.PersistentVolumeSet]{func(s *tarnv1.PersistentVolumeSet) {
		s.Name, s.UID, s.Spec.Selector = "silver", "other", map[string]string{"tier": "1"}
		s.Spec.Template.Metadata.Labels = map[string]string{"tier": "1"}
	}}, changes...)...)
}

func TestASetMakesNoVolumeThatIsOneTooManyForAnother(t *testing.T) {
	s := set(3, 9)
	makesOurs := func(o *tarnv1.PersistentVolumeSet) {
		o.Spec.Selector = map[string]string{"pool": testSet}
		o.Spec.Template.Metadata.Labels = map[string]string{"pool": testSet}
	}
	apart := func(o *tarnv1.PersistentVolumeSet) {
		o.Spec.Selector = map[string]string{"pool": "silver"}
		o.Spec.Template.Metadata.Labels = map[string]string{"pool": "silver"}
	}
	goes := func(o *tarnv1.PersistentVolumeSet) { o.DeletionTimestamp = &anHourAgo }
	order := func(n int) string { return strings.TrimSuffix(orders(0, n), ", ") }
	for _, c := range []struct {
		name    string
		other   tarnv1.PersistentVolumeSet
		fillers int
		volumes []*corev1.PersistentVolume
		want    string
	}{
		{"one with labels of its own", beside(0, apart), 0, nil, order(3)},
		{"one that has room", beside(9), 0, nil, order(3)},
		{"one that has less room", beside(2), 0, nil, order(2)},
		{"one that is full", beside(1), 0, []*corev1.PersistentVolume{volumeOf(s, "a", ofSet("other"), inPool("silver"))}, ""},
		{"one that goes", beside(0, goes), 0, nil, order(3)},
		{"one that is full of what it has being made", beside(2), 2, nil, ""},
		{"one that makes what is ours", beside(9, makesOurs), 7, nil, order(2)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var claims []corev1.PersistentVolumeClaim
			for i := range c.fillers {
				claims = append(claims, *fillerClaim(&View{Set: &c.other, Namespace: testNamespace}, i, ""))
			}
			var volumes []corev1.PersistentVolume
			for _, vol := range c.volumes {
				volumes = append(volumes, *vol)
			}
			v := view(s)
			if err := v.meet([]tarnv1.PersistentVolumeSet{*s, c.other}, claims, func(map[string]string) ([]corev1.PersistentVolume, error) { return volumes, nil }); err != nil {
				t.Fatal(err)
			}
			if got := did(plan(v, testTime)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func inPool(name string) testkit.With[*corev1.PersistentVolume] {
	return func(vol *corev1.PersistentVolume) { vol.Labels["pool"] = name }
}

func TestWhatBecomesOfASetConcernsThoseThatShareVolumesWithIt(t *testing.T) {
	s := set(1, 1)
	for _, c := range []struct {
		name  string
		other tarnv1.PersistentVolumeSet
		want  bool
	}{
		{"it counts ours", beside(1), true},
		{"we count its", beside(1, func(o *tarnv1.PersistentVolumeSet) {
			o.Spec.Selector = map[string]string{"x": "1"}
			o.Spec.Template.Metadata.Labels = map[string]string{"x": "1", "pool": testSet}
		}), true},
		{"neither", beside(1, func(o *tarnv1.PersistentVolumeSet) {
			o.Spec.Selector = map[string]string{"x": "1"}
			o.Spec.Template.Metadata.Labels = map[string]string{"x": "1"}
		}), false},
		{"ourselves", *s, false},
	} {
		if got := concernsNeighbour(s, &c.other); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}
