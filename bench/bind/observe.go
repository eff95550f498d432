package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
)

// namespace holds the claims.
const namespace = "default"

// claims watches the claims of a run and notes when each was asked for and when it was
// seen Bound.
type claims struct {
	mu      sync.Mutex
	asked   map[string]time.Time
	bound   map[string]time.Time
	want    int
	all     chan struct{}
	waiting func(*corev1.PersistentVolumeClaim) // is shown every claim that is not Bound
}

// watchClaims begins to watch; want is how many claims there will be.
func (c *cluster) watchClaims(ctx context.Context, want int, waiting func(*corev1.PersistentVolumeClaim)) (*claims, error) {
	seen := &claims{asked: map[string]time.Time{}, bound: map[string]time.Time{}, want: want, all: make(chan struct{}), waiting: waiting}
	api := c.client.CoreV1().PersistentVolumeClaims(namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	events, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return api.Watch(ctx, o) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching claims: %w", err)
	}
	go func() {
		for event := range events.ResultChan() {
			if claim, ok := event.Object.(*corev1.PersistentVolumeClaim); ok && event.Type != watch.Deleted {
				seen.see(claim)
			}
		}
	}()
	return seen, nil
}

func (c *claims) see(claim *corev1.PersistentVolumeClaim) {
	if claim.Status.Phase != corev1.ClaimBound {
		if c.waiting != nil {
			c.waiting(claim)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.bound[claim.Name]; known {
		return
	}
	c.bound[claim.Name] = time.Now()
	if len(c.bound) == c.want {
		close(c.all)
	}
}

// ask notes that a claim is about to be made.
func (c *claims) ask(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[name] = time.Now()
}

// awaitAll waits until every claim was seen Bound.
func (c *claims) awaitAll(ctx context.Context, patience time.Duration) error {
	select {
	case <-c.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("after %s only %d of %d claims are Bound", patience, len(c.bound), c.want)
	}
}

// times gives what was noted, once no more is to come.
func (c *claims) times() (asked, bound map[string]time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.bound
}

// awaitVolumes waits until n volumes of a kind, which is their label, have a phase.
func (c *cluster) awaitVolumes(ctx context.Context, kind string, n int, phase corev1.PersistentVolumePhase, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options := metav1.ListOptions{LabelSelector: kindLabel + "=" + kind}
	api := c.client.CoreV1().PersistentVolumes()
	list, err := api.List(ctx, options)
	if err != nil {
		return fmt.Errorf("listing volumes: %w", err)
	}
	there := map[string]bool{}
	for i := range list.Items {
		if list.Items[i].Status.Phase == phase {
			there[list.Items[i].Name] = true
		}
	}
	if len(there) >= n {
		return nil
	}
	events, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = options.LabelSelector
			return api.Watch(ctx, o)
		},
	})
	if err != nil {
		return fmt.Errorf("watching volumes: %w", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		volume, ok := event.Object.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		there[volume.Name] = volume.Status.Phase == phase && event.Type != watch.Deleted
		if !there[volume.Name] {
			delete(there, volume.Name)
		}
		if len(there) >= n {
			return nil
		}
	}
	return fmt.Errorf("after %s only %d of %d volumes of kind %s are %s", patience, len(there), n, kind, phase)
}
