package kube_test

import (
	"context"
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
