package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// follow fills the list, and then reports every later change. It resumes when the API server ends a
// watch, which may happen at any time. Changes in between are reported then, up to a second late if
// the watch had just begun.
func follow(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	if err := c.List(ctx, list, opts...); err != nil {
		return nil, fmt.Errorf("looking at %T: %w", list, err)
	}
	from := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := c.Watch(ctx, list, append(slices.Clone(opts), &client.ListOptions{Raw: &o})...)
		if err != nil && ctx.Err() != nil {
			return nil, io.EOF // the caller has stopped it, so this is not an error
		}
		return w, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{WatchFuncWithContext: from})
}

// until reads a watch until wanted returns true.
func until(w watch.Interface, wanted func(watch.Event) bool) error {
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return apierrors.FromObject(e.Object)
		}
		if wanted(e) {
			return nil
		}
	}
	return errors.New("it was not told in time")
}

// await watches one object until it is as wanted, and gives the time of that.
func await[T client.Object](ctx context.Context, c client.WithWatch, list client.ObjectList, id, ns string, is func(T) bool) (time.Time, error) {
	w, err := follow(ctx, c, list, client.InNamespace(ns), client.MatchingFields{"metadata.name": id})
	if err != nil {
		return time.Time{}, err
	}
	defer w.Stop()
	there, err := meta.ExtractList(list)
	if err != nil {
		return time.Time{}, err
	}
	for _, one := range there {
		if o, ok := one.(T); ok && is(o) {
			return time.Now(), nil
		}
	}
	err = until(w, func(e watch.Event) bool {
		o, ok := e.Object.(T)
		return ok && e.Type != watch.Deleted && is(o)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("waiting for %s to become as wanted: %w", id, err)
	}
	return time.Now(), nil
}

// gone waits until the provisioner is gone, because the next run makes one with the same name.
func (b *bench) gone(ctx context.Context) error {
	list := &pavv1.PavProvisionerList{}
	w, err := follow(ctx, b.client, list, client.MatchingFields{"metadata.name": name})
	if err != nil {
		return err
	}
	defer w.Stop()
	if len(list.Items) == 0 {
		return nil
	}
	if err := until(w, func(e watch.Event) bool { return e.Type == watch.Deleted }); err != nil {
		return fmt.Errorf("waiting for the end of the provisioner: %w", err)
	}
	return nil
}
