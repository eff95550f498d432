// Package capacity measures how much is free on the node, for the CSIStorageCapacity objects of the
// node. The controller accept creates these objects. The package writes nothing of them but the
// field capacity, and calls nothing on the measured file systems but fstatfs.
package capacity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/volume"
)

const (
	// interval is how often each path is measured, besides after each step on the node.
	interval = time.Minute
	// patience is how long a file system may take to answer.
	patience = 10 * time.Second
	// hostRoot is the root directory of the node's first process.
	hostRoot = "/proc/1/root"
)

// Meter measures for one node.
type Meter struct {
	writer client.Client
	cached client.Reader
	node   string
	root   string
	asker  hangguard.Asker
	steps  chan event.GenericEvent
}

// New returns a Meter for a node. cached must be a cache made with CacheOptions.
func New(writer client.Client, cached client.Reader, node string) *Meter {
	root := hostRoot
	// Where the first process is not to be looked into, the agent is a process of the node itself,
	// not of a container.
	if _, err := os.Stat(root + "/"); err != nil {
		root = "/"
	}
	return &Meter{writer: writer, cached: cached, node: node, root: root, steps: make(chan event.GenericEvent, 1)}
}

// CacheOptions limit a cache to the objects of a node.
func CacheOptions(node string) cache.ByObject {
	return cache.ByObject{Namespaces: map[string]cache.Config{tarnv1.SystemNamespace: {
		LabelSelector: labels.SelectorFromSet(labels.Set{tarnv1.LabelCapacityNode: tarnv1.VolumeLabel(node)}),
	}}}
}

// +kubebuilder:rbac:groups=storage.k8s.io,resources=csistoragecapacities,verbs=list;watch;patch,namespace=tarn-system

// Register adds the meter to a manager.
func (m *Meter) Register(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("node-capacity").
		For(&storagev1.CSIStorageCapacity{}, builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		WatchesRawSource(source.Channel(m.steps, handler.EnqueueRequestsFromMapFunc(m.all))).
		WithOptions(controller.Options{RateLimiter: kube.RateLimiter()}).
		Complete(m)
}

// StepEnded has all paths measured soon, because a step may have taken or freed space.
func (m *Meter) StepEnded() {
	select {
	case m.steps <- event.GenericEvent{Object: &storagev1.CSIStorageCapacity{}}:
	default: // one is waiting already
	}
}

func (m *Meter) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list storagev1.CSIStorageCapacityList
	if err := m.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has stopped
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}

// Reconcile measures for one object, and writes the result if it has moved.
func (m *Meter) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	c := &storagev1.CSIStorageCapacity{}
	if err := m.cached.Get(ctx, q.NamespacedName, c); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	path := c.Annotations[tarnv1.AnnotationCapacityPath]
	if c.Annotations[tarnv1.AnnotationNode] != m.node || path == "" {
		return reconcile.Result{}, nil
	}
	free, err := m.measure(path, c.Annotations[tarnv1.AnnotationCapacityReserve])
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot measure what is free; the last value stays", "class", c.StorageClassName, "path", path)
		return reconcile.Result{RequeueAfter: interval}, nil
	}
	if c.Capacity != nil && !volume.Moved(c.Capacity.Value(), free) {
		return reconcile.Result{RequeueAfter: interval}, nil
	}
	changed := c.DeepCopy()
	changed.Capacity = resource.NewQuantity(free, resource.BinarySI)
	// The lock keeps a figure of one path from an object that names another by now.
	if err := m.writer.Patch(ctx, changed, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return kube.Outcome(fmt.Errorf("writing what is free for StorageClass %s: %w", c.StorageClassName, err), time.Time{}, time.Time{})
	}
	return reconcile.Result{RequeueAfter: interval}, nil
}

// measure is how many bytes a volume may take at a path of the node.
func (m *Meter) measure(path, reserve string) (int64, error) {
	kept, err := volume.ParseReserve(reserve)
	if err != nil {
		return 0, err
	}
	s, err := hangguard.Ask(&m.asker, path, patience, func() (unix.Statfs_t, error) { return statfs(m.root, path) }, func(unix.Statfs_t, error) {})
	if err != nil {
		return 0, fmt.Errorf("file system of %s: %w", path, err)
	}
	unit := uint64(s.Frsize) //nolint:gosec // a size of a block is positive
	return kept.Left(s.Blocks*unit, s.Bavail*unit), nil
}

// statfs asks the file system of a path below a root directory, or of its nearest parent that
// exists. Symbolic links do not lead out of the root.
func statfs(root, path string) (unix.Statfs_t, error) {
	var s unix.Statfs_t
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(at) }()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	for p := filepath.Clean(path); ; p = filepath.Dir(p) {
		fd, err := unix.Openat2(at, p, how)
		switch {
		case err == nil:
			err = unix.Fstatfs(fd, &s)
			_ = unix.Close(fd)
			return s, err
		case !errors.Is(err, unix.ENOENT) || p == "/":
			return s, &os.PathError{Op: "open", Path: p, Err: err}
		}
	}
}
