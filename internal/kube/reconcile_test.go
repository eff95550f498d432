package kube_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestPausesAreSpreadAndTheSameForTheSameObject(t *testing.T) {
	const first, most, objects = 2 * time.Second, 5 * time.Minute, 1000
	for n, plain := range map[int32]time.Duration{
		1: first, 2: 2 * first, 5: 16 * first, 8: 128 * first,
		9: most, 1000: most, 0: first, -3: first,
	} {
		t.Run(fmt.Sprintf("after failure %d", n), func(t *testing.T) {
			fourths := [4]int{} // of the range from 80% to 120%, how many pauses lie in each fourth
			for i := range objects {
				seed := fmt.Sprintf("5f1c8a52-7e44-4c0e-9d5b-%012d", i)
				pause := kube.Backoff(n, first, most, seed)
				if again := kube.Backoff(n, first, most, seed); again != pause {
					t.Fatalf("%s pauses %s, then %s", seed, pause, again)
				}
				if pause < plain*4/5 || pause >= plain*6/5 {
					t.Fatalf("%s pauses %s, want 80%% to 120%% of %s", seed, pause, plain)
				}
				fourths[int((pause-plain*4/5)*4/(plain*2/5))]++
			}
			for i, here := range fourths {
				if here < objects/8 {
					t.Errorf("%d of %d pauses are in fourth %d of the range: they are not spread", here, objects, i+1)
				}
			}
		})
	}
}

func TestManyEventsMakeOneLookAfterThePause(t *testing.T) {
	called := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	h := kube.Soon(time.Second, func(_ context.Context, old, current client.Object) []string {
		var names []string
		if old != nil {
			names = append(names, "was-"+old.GetName())
		}
		if current != nil {
			names = append(names, "is-"+current.GetName())
		}
		return names
	})
	for _, c := range []struct {
		name string
		tell func(*testkit.Delayed)
		want []string
	}{
		{"a thousand that are new", func(q *testkit.Delayed) {
			for range 1000 {
				h.Create(t.Context(), event.CreateEvent{Object: called("a")}, q)
			}
		}, []string{"is-a"}},
		{"one that changes", func(q *testkit.Delayed) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: called("a"), ObjectNew: called("b")}, q)
		}, []string{"is-b", "was-a"}},
		{"one that is gone", func(q *testkit.Delayed) { h.Delete(t.Context(), event.DeleteEvent{Object: called("a")}, q) }, []string{"was-a"}},
	} {
		q := &testkit.Delayed{}
		c.tell(q)
		if got := slices.Sorted(maps.Keys(q.Added)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q are looked at, want %q", c.name, got, c.want)
		}
		for name, pause := range q.Added {
			if pause != time.Second {
				t.Errorf("%s: %s is looked at after %s, want a second", c.name, name, pause)
			}
		}
	}
}
