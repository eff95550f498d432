package testkit

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// deduced tells the owners of fields without the schemas of all Kubernetes kinds, which the fake
// client would read for each store.
var deduced = sync.OnceValue(managedfields.NewDeducedTypeConverter)

// Store builds an API server in memory with objects. Tarn's kinds have the subresource status. It
// has the indexes that several controllers share; a controller's own are added with WithIndex.
func Store(objects ...client.Object) *fake.ClientBuilder {
	return fake.NewClientBuilder().WithScheme(kube.Scheme()).WithTypeConverters(deduced()).WithObjects(objects...).
		WithStatusSubresource(&pavv1.PavProvisioner{}, &tarnv1.PavVolume{}, &tarnv1.PavStage{}, &tarnv1.PersistentVolumeSet{}, &tarnv1.App{}).
		WithIndex(&corev1.PersistentVolumeClaim{}, kube.ClaimsByVolume, kube.VolumeNamed).
		WithIndex(&corev1.PersistentVolume{}, kube.VolumesByHandle, kube.HandleOf).
		WithIndex(&tarnv1.PavVolume{}, kube.RecordsByHandleAwaited, kube.HandleAwaited).
		// The API server itself selects by these.
		WithIndex(&tarnv1.PavVolume{}, "spec.source.storage", field(func(r *tarnv1.PavVolume) string {
			if r.Spec.Source == nil {
				return ""
			}
			return r.Spec.Source.Storage
		})).
		WithIndex(&tarnv1.PavVolume{}, "status.handle", field(func(r *tarnv1.PavVolume) string { return r.Status.Handle })).
		WithIndex(&tarnv1.PavStage{}, "spec.volumeName", field(func(s *tarnv1.PavStage) string { return s.Spec.VolumeName })).
		WithIndex(&corev1.Pod{}, "spec.nodeName", field(func(p *corev1.Pod) string { return p.Spec.NodeName }))
}

// field is an index of one value.
func field[T client.Object](of func(T) string) client.IndexerFunc {
	return func(o client.Object) []string { return []string{of(o.(T))} }
}

// Stale is a client whose cache shows what Seen has, and whose writes reach the API server.
type Stale struct {
	client.Client
	Seen client.Reader
}

// Get reads from the cache.
func (s *Stale) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return s.Seen.Get(ctx, key, into, opts...)
}

// List reads from the cache.
func (s *Stale) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return s.Seen.List(ctx, list, opts...)
}

// Writes counts the writes of a client to a Store, and can make each of them fail.
type Writes struct {
	// Count is the number of writes so far.
	Count int
	// Fail is called before and after each write with its number, from 1. An error before the
	// write prevents it. nil never fails.
	Fail func(n int, made bool) error
	// Create, if set, replaces the creation of an object.
	Create func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error
}

// Wrap gives a client whose writes are counted.
func (w *Writes) Wrap(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write(func() error {
				if w.Create != nil {
					return w.Create(ctx, c, o, opts...)
				}
				return c.Create(ctx, o, opts...)
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.write(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

func (w *Writes) write(do func() error) error {
	w.Count++
	n := w.Count
	if w.Fail == nil {
		return do()
	}
	if err := w.Fail(n, false); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return w.Fail(n, true)
}
