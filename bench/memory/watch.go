package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// await watches one object until it is as wanted.
func await[T client.Object](ctx context.Context, c client.WithWatch, list client.ObjectList, id, namespace string, is func(T) bool) error {
	w, err := c.Watch(ctx, list, client.InNamespace(namespace), client.MatchingFields{"metadata.name": id})
	if err != nil {
		return fmt.Errorf("watching %s: %w", id, err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if o, ok := event.Object.(T); ok && is(o) {
			return nil
		}
	}
	return fmt.Errorf("%s did not become as wanted in time", id)
}

// empty waits until there is no object of the list's kind.
func (b *bench) empty(ctx context.Context, list client.ObjectList) error {
	if err := b.client.List(ctx, list); err != nil {
		return err
	}
	left := meta.LenList(list)
	if left == 0 {
		return nil
	}
	w, err := b.client.Watch(ctx, list)
	if err != nil {
		return fmt.Errorf("watching %T: %w", list, err)
	}
	defer w.Stop()
	there := map[string]bool{}
	for event := range w.ResultChan() {
		o, ok := event.Object.(client.Object)
		if !ok {
			return fmt.Errorf("watching %T: %v", list, event.Object)
		}
		there[o.GetName()] = true
		if event.Type == watch.Deleted {
			delete(there, o.GetName())
		}
		if len(there) == 0 {
			return b.empty(ctx, list)
		}
	}
	return fmt.Errorf("%T: %d are left", list, len(there))
}
