package provision

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// world is an API server and the controller. The controller's cache shows what the API server has,
// unless the test gives it another.
type world struct {
	t      *testing.T
	store  client.WithWatch
	r      *reconciler
	events *events.FakeRecorder
}

func build(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).
		WithStatusSubresource(&tarnv1.PavVolume{}, &pavv1.PavProvisioner{}).
		WithIndex(&corev1.PersistentVolume{}, kube.VolumesByHandle, kube.HandleOf).
		WithIndex(&tarnv1.PavVolume{}, "status.handle", func(o client.Object) []string { return []string{o.(*tarnv1.PavVolume).Status.Handle} })
	for name, key := range indexes() {
		b = b.WithIndex(&corev1.PersistentVolumeClaim{}, name, key)
	}
	return b.Build()
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	w := &world{t: t, store: build(objects...), events: events.NewFakeRecorder(100)}
	w.r = &reconciler{
		client: w.store, reader: w.store, events: w.events, clock: testclock.NewFakePassiveClock(now),
		steps: &steppod.Steps{Client: w.store, Reader: w.store},
	}
	w.r.handles = kube.Handles{Cached: w.store, Live: w.store}
	return w
}

// remembering makes the controller's cache show the given objects, whatever the API server has.
func (w *world) remembering(objects ...client.Object) {
	seen := build(objects...)
	w.r.client = &cached{Client: w.store, seen: seen}
	w.r.handles.Cached = seen
}

// cached reads from a given cache and writes to the API server.
type cached struct {
	client.Client
	seen client.Reader
}

func (c *cached) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return c.seen.Get(ctx, key, into, opts...)
}

func (c *cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.seen.List(ctx, list, opts...)
}

// look reconciles the volume of the claim with a UID.
func (w *world) look(uid types.UID) reconcile.Result {
	w.t.Helper()
	result, err := w.r.Reconcile(w.t.Context(), request(volumeName(uid)))
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// record reads a record, nil if it is gone.
func (w *world) record(uid types.UID) *tarnv1.PavVolume {
	w.t.Helper()
	record, err := kube.Get(w.t.Context(), w.store, client.ObjectKey{Name: volumeName(uid)}, &tarnv1.PavVolume{})
	w.must(err)
	return record
}

func (w *world) volume(uid types.UID) *corev1.PersistentVolume {
	w.t.Helper()
	vol, err := kube.Get(w.t.Context(), w.store, client.ObjectKey{Name: volumeName(uid)}, &corev1.PersistentVolume{})
	w.must(err)
	return vol
}

func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	pods := &corev1.PodList{}
	w.must(w.store.List(w.t.Context(), pods))
	return pods.Items
}
