package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// following lists and watches the objects of a list's kind. It resumes when the API server ends a
// watch, which may happen at any time.
func following(c client.WithWatch, list client.ObjectList, opts ...client.ListOption) *toolscache.ListWatch {
	with := func(o metav1.ListOptions) []client.ListOption {
		return append([]client.ListOption{&client.ListOptions{Raw: &o}}, opts...)
	}
	fresh := func() client.ObjectList { return list.DeepCopyObject().(client.ObjectList) } //nolint:forcetypeassert // a copy
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			found := fresh()
			return found, c.List(ctx, found, with(o)...)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, fresh(), with(o)...)
		},
	}
}

// await waits until one object is as wanted. kind is any object of its kind.
func await[T client.Object](ctx context.Context, c client.WithWatch, kind T, list client.ObjectList, id, namespace string, is func(T) bool) error {
	one := following(c, list, client.InNamespace(namespace), client.MatchingFields{"metadata.name": id})
	_, err := watchtools.UntilWithSync(ctx, one, kind, nil, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(T)
		return ok && e.Type != watch.Deleted && is(o), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s to become as wanted: %w", id, err)
	}
	return nil
}

// empty waits until there is no object of a kind.
func (b *bench) empty(ctx context.Context, kind client.Object, list client.ObjectList) error {
	there := map[string]bool{}
	none := func(now toolscache.Store) (bool, error) {
		for _, id := range now.ListKeys() {
			there[id] = true
		}
		return len(there) == 0, nil
	}
	_, err := watchtools.UntilWithSync(ctx, following(b.client, list), kind, none, func(e watch.Event) (bool, error) {
		id, err := toolscache.MetaNamespaceKeyFunc(e.Object)
		if e.Type == watch.Deleted {
			delete(there, id)
		} else {
			there[id] = true
		}
		return len(there) == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the end of all %T, of which %d are left: %w", kind, len(there), err)
	}
	return nil
}
