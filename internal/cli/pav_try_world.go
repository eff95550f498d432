package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sfields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// tryWorld is the part of a cluster that concerns one provisioner and one namespace. It reads from
// caches; their watches trigger a new check in await.
type tryWorld struct {
	live   client.Client
	cached cache.Cache
	logs   kubernetes.Interface
	// ending says that the cleanup has begun. Pods that cannot start are no failure then.
	ending bool

	mu      sync.Mutex
	changed chan struct{}
	phases  []tryPhase
}

// newTryWorld connects, and returns after the caches are filled. The watches end with ctx.
func newTryWorld(ctx context.Context, to connection, provisioner, namespace string) (*tryWorld, error) {
	ctrl.SetLogger(logr.Discard())
	config, err := to.config()
	if err != nil {
		return nil, err
	}
	w := &tryWorld{changed: make(chan struct{})}
	if w.live, err = client.New(config, client.Options{Scheme: kube.Scheme()}); err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	if w.logs, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	ours := labels.SelectorFromSet(labels.Set{tarnv1.LabelProvisioner: provisioner})
	w.cached, err = cache.New(config, cache.Options{
		Scheme: kube.Scheme(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&pavv1.PavProvisioner{}: {Field: k8sfields.OneTermEqualSelector("metadata.name", provisioner)},
			&tarnv1.PavVolume{}:     {Label: ours},
			&tarnv1.PavStage{}:      {Label: ours},
			&corev1.Namespace{}:     {Field: k8sfields.OneTermEqualSelector("metadata.name", namespace)},
			&corev1.Pod{}: {Namespaces: map[string]cache.Config{
				namespace: {}, cache.AllNamespaces: {LabelSelector: ours},
			}},
			&corev1.PersistentVolumeClaim{}: {Namespaces: map[string]cache.Config{namespace: {}}},
			&corev1.Event{}:                 {Field: k8sfields.OneTermEqualSelector("reason", failedMount)},
		},
	})
	if err != nil {
		return nil, err
	}
	return w, w.follow(ctx)
}

func (w *tryWorld) follow(ctx context.Context) error {
	for _, kind := range []client.Object{
		&pavv1.PavProvisioner{}, &tarnv1.PavVolume{}, &tarnv1.PavStage{}, &corev1.Namespace{}, &corev1.Pod{}, &corev1.PersistentVolumeClaim{},
		&corev1.PersistentVolume{}, &corev1.Event{},
	} {
		informer, err := w.cached.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("following %T: %w; install Tarn as docs/operations/install.md says", kind, err)
		}
		if _, err := informer.AddEventHandler(w); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- w.cached.Start(ctx) }()
	if !w.cached.WaitForCacheSync(ctx) {
		return errors.Join(errors.New("the initial lists did not arrive"), <-ended)
	}
	return nil
}

// OnAdd, OnUpdate and OnDelete are called by informers.
func (w *tryWorld) OnAdd(o any, _ bool) { w.note(o, time.Now()); w.wake() }
func (w *tryWorld) OnUpdate(_, now any) { w.note(now, time.Now()); w.wake() }
func (w *tryWorld) OnDelete(any)        { w.wake() }

func (w *tryWorld) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *tryWorld) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// tryLook is the result of one check: the expected state is reached, is not reached yet (state says
// why), or cannot be reached (err says why).
type tryLook struct {
	done  bool
	state string
	err   error
}

func done() tryLook              { return tryLook{done: true} }
func still(state string) tryLook { return tryLook{state: state} }
func fatal(err error) tryLook    { return tryLook{err: err} }

// await repeats check after each change, until it is done or fails. It also fails when a pod of the
// test cannot start. On a timeout its error says how things stand.
func (w *tryWorld) await(ctx context.Context, what string, check func() tryLook) error {
	for {
		change := w.next()
		now := check()
		if now.done || now.err != nil {
			return now.err
		}
		if err := w.stuck(ctx); err != nil {
			return fmt.Errorf("waited for %s: %w", what, err)
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %s", what, now.state)
		}
	}
}

// awaitGone waits until an object is gone, or another object has its name.
func (w *tryWorld) awaitGone(ctx context.Context, what string, o client.Object) error {
	key := client.ObjectKeyFromObject(o)
	now, _ := o.DeepCopyObject().(client.Object)
	return w.await(ctx, what+" to be gone", func() tryLook {
		if err := w.cached.Get(ctx, key, now); err == nil && (o.GetUID() == "" || now.GetUID() == o.GetUID()) {
			return still(fmt.Sprintf("it still exists, finalizers %q", now.GetFinalizers()))
		}
		// The cache may be behind, so that an object is missing there proves nothing.
		err := w.live.Get(ctx, key, now)
		if err != nil && !apierrors.IsNotFound(err) {
			return still(err.Error())
		}
		return tryLook{done: err != nil || o.GetUID() != "" && now.GetUID() != o.GetUID(), state: "it still exists"}
	})
}

// remove deletes an object that may be gone already.
func (w *tryWorld) remove(ctx context.Context, o client.Object) error {
	return client.IgnoreNotFound(w.live.Delete(ctx, o))
}

// printed returns the last lines that each container of a pod has printed.
func (w *tryWorld) printed(ctx context.Context, pod *corev1.Pod) string {
	const lines = 20
	var text string
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if status.State.Running == nil && status.State.Terminated == nil {
			continue
		}
		tail := int64(lines)
		out, err := w.logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: status.Name, TailLines: &tail}).DoRaw(ctx)
		if err == nil {
			text += string(out)
		}
	}
	return text
}

// failedMount is the reason of the kubelet's Event for a volume that it cannot mount. No field of
// the pod says so.
const failedMount = "FailedMount"

// hopeless are the kubelet's reasons for a waiting container that a test will not resolve.
var hopeless = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
}

// stuck returns an error for a pod of the test that cannot start, nil if there is none.
func (w *tryWorld) stuck(ctx context.Context) error {
	pods := &corev1.PodList{}
	if w.ending || w.cached.List(ctx, pods) != nil {
		return nil
	}
	steps := &steppod.Steps{EventsOf: steppod.LiveEvents(w.live)}
	for i := range pods.Items {
		if why := neverStarts(ctx, steps, &pods.Items[i], time.Now()); why != "" {
			return fmt.Errorf("pod %s/%s cannot start: %s", pods.Items[i].Namespace, pods.Items[i].Name, why)
		}
	}
	return nil
}

// neverStarts says why a pod cannot start, empty if it may. A failed mount counts only for the pod
// of a step, and only after its first seconds. For a consumer, mounts fail until the volume is
// staged.
func neverStarts(ctx context.Context, steps *steppod.Steps, pod *corev1.Pod, now time.Time) string {
	if pod.DeletionTimestamp != nil {
		return ""
	}
	if kind, why := steppod.Waiting(pod); kind != "" {
		if slices.Contains(hopeless, kind) {
			return why
		}
		return ""
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || pod.Labels[tarnv1.LabelStep] == "" {
		return ""
	}
	o := steppod.Observe(pod, owner.UID, now)
	if o.State != steppod.PodStarting || o.Message != "" {
		return ""
	}
	if o, err := steps.Unmounted(ctx, pod, o, now); err == nil {
		return o.Message
	}
	return ""
}
