package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// reached waits until n objects are as wanted.
func reached[O interface {
	comparable
	runtime.Object
	metav1.Object
}, L runtime.Object](ctx context.Context, n int, what string, list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error), is func(O) bool) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var kind O
	as := map[string]bool{}
	_, err := watchtools.UntilWithSync(ctx, &toolscache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: follow,
	}, kind, nil, func(e watch.Event) (bool, error) {
		if o, ok := e.Object.(O); ok && e.Type != watch.Deleted && is(o) {
			as[o.GetName()] = true
		}
		return len(as) >= n, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %d %s, of which %d are: %w", n, what, len(as), err)
	}
	return nil
}

// gone waits until n claims have been deleted since a version. It gives the version of the last
// deletion.
func (b *bench) gone(ctx context.Context, since string, n int) (string, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	seen := 0
	claims := b.client.CoreV1().PersistentVolumeClaims(namespace)
	last, err := watchtools.Until(ctx, since, &toolscache.ListWatch{WatchFuncWithContext: claims.Watch}, func(e watch.Event) (bool, error) {
		if e.Type == watch.Deleted {
			seen++
		}
		return seen >= n, nil
	})
	if err != nil {
		return "", fmt.Errorf("waiting for %d claims to be gone, of which %d are: %w", n, seen, err)
	}
	o, err := meta.Accessor(last.Object)
	if err != nil {
		return "", err
	}
	return o.GetResourceVersion(), nil
}

// podLists is how often clients have listed the pods of one namespace. The controllers watch all
// namespaces, so a list of one namespace is a deliberate check before a removal.
func (b *bench) podLists(ctx context.Context) (int, error) {
	text, err := b.client.RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	lists := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `resource="pods",scope="namespace"`) || !strings.Contains(line, `verb="LIST"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			return 0, fmt.Errorf("reading a metric of the API server, %q: %w", strings.TrimSpace(line), err)
		}
		lists += int(n)
	}
	return lists, nil
}

// listedSince is the number of lists since count, which it updates.
func (b *bench) listedSince(ctx context.Context, count *int) (int, error) {
	now, err := b.podLists(ctx)
	since := now - *count
	*count = now
	return since, err
}
