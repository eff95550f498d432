package pool

import (
	"context"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// knowsSets is a cache that has only sets.
type knowsSets struct {
	client.Client
	sets []tarnv1.PersistentVolumeSet
}

func (c knowsSets) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*tarnv1.PersistentVolumeSetList).Items = c.sets
	return nil
}

func TestManyChangesOfAPoolMakeOneLook(t *testing.T) {
	named := func(name string) tarnv1.PersistentVolumeSet {
		return tarnv1.PersistentVolumeSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: tarnv1.PersistentVolumeSetSpec{Selector: map[string]string{"pool": name}},
		}
	}
	r := &reconciler{client: knowsSets{sets: []tarnv1.PersistentVolumeSet{named("was"), named("is"), named("other")}}, namespace: testNamespace}
	labelled := func(pool string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Labels: map[string]string{"pool": pool}}}
	}
	for _, c := range []struct {
		name string
		tell func(context.Context, *testkit.Delayed)
		want []string
	}{
		{"a thousand new volumes", func(ctx context.Context, q *testkit.Delayed) {
			for range 1000 {
				r.soon(r.concernsVolume).Create(ctx, event.CreateEvent{Object: labelled("is")}, q)
			}
		}, []string{"is"}},
		{"a volume that goes over to another set", func(ctx context.Context, q *testkit.Delayed) {
			r.soon(r.concernsVolume).Update(ctx, event.UpdateEvent{ObjectOld: labelled("was"), ObjectNew: labelled("is")}, q)
		}, []string{"was", "is"}},
		{"a volume that is gone", func(ctx context.Context, q *testkit.Delayed) {
			r.soon(r.concernsVolume).Delete(ctx, event.DeleteEvent{Object: labelled("was")}, q)
		}, []string{"was"}},
		{"a volume of no set", func(ctx context.Context, q *testkit.Delayed) {
			r.soon(r.concernsVolume).Create(ctx, event.CreateEvent{Object: labelled("none")}, q)
		}, nil},
		{"a set", func(ctx context.Context, q *testkit.Delayed) {
			set := named("is")
			r.soon(concernsSet).Create(ctx, event.CreateEvent{Object: &set}, q)
		}, []string{"is"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := &testkit.Delayed{}
			c.tell(t.Context(), q)
			want := map[string]time.Duration{}
			for _, name := range c.want {
				want[name] = gatherTime
			}
			if !maps.Equal(q.Added, want) {
				t.Errorf("got %v, want %v", q.Added, want)
			}
		})
	}
}
