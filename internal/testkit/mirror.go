package testkit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// Mirror caches the objects of an API server by watches. Waiting tests check again when something
// has changed, and stand-ins for controllers read from its cache, as controllers do. The cache may
// be stale: an object missing in it may exist.
type Mirror struct {
	client.Reader
	mu      sync.Mutex
	changed chan struct{}
}

// mirrored are the kinds a Mirror follows.
var mirrored = []client.Object{
	&corev1.Pod{}, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &corev1.Event{}, &storagev1.StorageClass{}, &appsv1.Deployment{},
	&pavv1.PavProvisioner{}, &tarnv1.PavVolume{}, &tarnv1.PavStage{}, &tarnv1.PersistentVolumeSet{}, &tarnv1.App{},
}

const (
	// lookAgain is the interval of checks for changes that no watch reports.
	lookAgain = 200 * time.Millisecond
	// burst is the least time between two checks.
	burst = 10 * time.Millisecond
)

// mirrors are those of this process, by the address of the API server.
var mirrors struct {
	sync.Mutex
	of map[string]*follower
}

type follower struct {
	*Mirror
	once sync.Once
	err  error
	stop context.CancelFunc
}

// MirrorOf gives the Mirror of an API server of this package. All callers share it.
func MirrorOf(t *testing.T, config *rest.Config) *Mirror {
	t.Helper()
	f := followerOf(config.Host)
	f.once.Do(func() { f.err = f.start(config) })
	if f.err != nil {
		t.Fatalf("following the objects of the API server: %v", f.err)
	}
	return f.Mirror
}

func followerOf(host string) *follower {
	mirrors.Lock()
	defer mirrors.Unlock()
	if mirrors.of[host] == nil {
		if mirrors.of == nil {
			mirrors.of = map[string]*follower{}
		}
		mirrors.of[host] = &follower{Mirror: &Mirror{changed: make(chan struct{})}, stop: func() {}}
	}
	return mirrors.of[host]
}

// forget ends the Mirror of an API server that is about to end.
func forget(host string) {
	mirrors.Lock()
	defer mirrors.Unlock()
	if f := mirrors.of[host]; f != nil {
		f.stop()
		delete(mirrors.of, host)
	}
}

// start fills the cache and follows changes until stop.
func (f *follower) start(config *rest.Config) error {
	c, err := cache.New(rest.CopyConfig(config), cache.Options{Scheme: kube.Scheme()})
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	for _, kind := range mirrored {
		informer, err := c.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("%T: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { f.wake() }, UpdateFunc: func(any, any) { f.wake() }, DeleteFunc: func(any) { f.wake() },
		}); err != nil {
			return err
		}
	}
	go func() { _ = c.Start(ctx) }() // returns when ctx ends
	c.WaitForCacheSync(ctx)
	f.Reader = c
	return nil
}

func (m *Mirror) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Mirror) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Until calls done after each change, and at intervals, until done returns true. Until returns
// false if ctx ended first.
func (m *Mirror) Until(ctx context.Context, done func() bool) bool {
	for {
		change, after := m.next(), time.After(burst)
		if done() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-change:
			<-after
		case <-time.After(lookAgain):
		}
	}
}
