package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// namespace holds the claims.
const namespace = "default"

// claims watches the claims of a run. It records when each was requested and when it was seen
// Bound.
type claims struct {
	mu      sync.Mutex
	asked   map[string]time.Time
	bound   map[string]time.Time
	want    int
	all     chan struct{}
	broken  chan error                          // the reason why the watch ended early
	waiting func(*corev1.PersistentVolumeClaim) // is called with every claim that is not Bound
}

// watchClaims starts the watch. want is how many claims there will be.
func (c *cluster) watchClaims(ctx context.Context, want int, waiting func(*corev1.PersistentVolumeClaim)) (*claims, error) {
	seen := &claims{asked: map[string]time.Time{}, bound: map[string]time.Time{}, want: want, all: make(chan struct{}), broken: make(chan error, 1), waiting: waiting}
	api := c.client.CoreV1().PersistentVolumeClaims(namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	go func() {
		err := follow(ctx, api.Watch, metav1.ListOptions{ResourceVersion: list.ResourceVersion}, func(event watch.Event) bool {
			if claim, ok := event.Object.(*corev1.PersistentVolumeClaim); ok && event.Type != watch.Deleted {
				seen.see(claim)
			}
			return true
		})
		if err != nil && ctx.Err() == nil {
			seen.broken <- err
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

// ask records that a claim is about to be made.
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
		return context.Cause(ctx)
	case err := <-c.broken:
		return err
	case <-time.After(patience):
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("after %s only %d of %d claims are Bound", patience, len(c.bound), c.want)
	}
}

// times gives the recorded times, once no more are to come.
func (c *claims) times() (asked, bound map[string]time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.bound
}

// awaitVolumes waits until n volumes of a kind, given by their label, have a phase.
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
	options.ResourceVersion = list.ResourceVersion
	err = follow(ctx, api.Watch, options, func(event watch.Event) bool {
		if volume, ok := event.Object.(*corev1.PersistentVolume); ok {
			delete(there, volume.Name)
			if volume.Status.Phase == phase && event.Type != watch.Deleted {
				there[volume.Name] = true
			}
		}
		return len(there) < n
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("after %s only %d of %d volumes of kind %s are %s", patience, len(there), n, kind, phase)
	}
	return err
}

// follow passes each change to see until see returns true. The API server ends the watch of a slow
// watcher. follow then resumes at once from the same version. A pause before that, such as the
// second of client-go's retrying watch, would be measured too.
func follow(ctx context.Context, open func(context.Context, metav1.ListOptions) (watch.Interface, error), from metav1.ListOptions, see func(watch.Event) bool) error {
	for {
		w, err := open(ctx, from)
		if err != nil {
			return fmt.Errorf("watching: %w", errors.Join(ctx.Err(), err))
		}
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				w.Stop()
				return fmt.Errorf("watching: %w", apierrors.FromObject(event.Object))
			}
			if object, err := meta.Accessor(event.Object); err == nil {
				from.ResourceVersion = object.GetResourceVersion()
			}
			if !see(event) {
				w.Stop()
				return nil
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
