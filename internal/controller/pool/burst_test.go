package pool

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/testkit"
)

func TestABurstOfClaimsGoesBeforeNewSpares(t *testing.T) {
	s := set(16, 100)
	// drew builds a pool with this many spares, from which this many volumes were drawn at a
	// time.
	drew := func(spares, drawn int, at time.Time, changes ...testkit.With[*corev1.PersistentVolume]) *View {
		var all []*corev1.PersistentVolume
		for i := range spares {
			all = append(all, volumeOf(s, fmt.Sprint("spare-", i)))
		}
		for i := range drawn {
			vol := volumeOf(s, fmt.Sprint("drawn-", i), boundTo(types.UID(fmt.Sprint(i))))
			vol.Status.LastPhaseTransitionTime = &metav1.Time{Time: at}
			for _, change := range changes {
				change(vol)
			}
			all = append(all, vol)
		}
		return view(s, all...)
	}
	just := testTime.Add(-time.Second)
	for _, c := range []struct {
		name  string
		view  *View
		again time.Time // zero: new ones are ordered
	}{
		{"many at once", drew(5, modelBurst, just), just.Add(burstTime)},
		{"one fewer", drew(5, modelBurst-1, just), time.Time{}},
		{"a while ago", drew(5, modelBurst, testTime.Add(-burstTime)), time.Time{}},
		{"and one is left", drew(1, modelBurst, just), just.Add(burstTime)},
		{"and none is left", drew(0, modelBurst, just), time.Time{}},
		{"by a clock that is ahead", drew(5, modelBurst, testTime.Add(time.Second)), testTime.Add(time.Second + burstTime)},
		{"by a clock that is far ahead", drew(5, modelBurst, testTime.Add(time.Hour)), time.Time{}},
		{"reserved, and not Bound", drew(5, modelBurst, just, in(corev1.VolumeAvailable)), time.Time{}},
		{"of which it does not know when", drew(5, modelBurst, just, func(vol *corev1.PersistentVolume) { vol.Status.LastPhaseTransitionTime = nil }), time.Time{}},
		{"by its own filler claims", drew(5, modelBurst, just, fillerOf(0)), time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(c.view, testTime)
			ordered := false
			for _, a := range p.Actions {
				_, is := a.(action.Create)
				ordered = ordered || is
			}
			if ordered != c.again.IsZero() || !p.Again.Equal(c.again) {
				t.Errorf("it orders new ones: %t, and looks again at %v; want %v", ordered, p.Again, c.again)
			}
		})
	}
	t.Run("and Ready says so", func(t *testing.T) {
		v := drew(5, modelBurst, just)
		const want = "5 of 16 volumes are Available, 0 are being created; more are created once the current burst of claims is served"
		if got := readyOf(v, count(v), testTime).Message; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("and nothing is missing", func(t *testing.T) {
		v := drew(16, modelBurst, just)
		if p := plan(v, testTime); len(p.Actions) > 0 || !p.Again.IsZero() {
			t.Errorf("it does %s, and looks again at %v", did(p), p.Again)
		}
	})
}
