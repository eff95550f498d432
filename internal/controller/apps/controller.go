package apps

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kube"
)

// Options are what the controller needs besides the manager.
type Options struct {
	// Classes are the default classes of volumes, by access mode; nil means
	// appspec.DefaultClasses.
	Classes map[appspec.AccessMode]string
	// MaxConcurrent is how many Apps are reconciled at once; 0 means one.
	MaxConcurrent int
	// Pods is a cache of all pods, from kube.AllPods. Without it no status says why a pod does
	// not run.
	Pods cache.Cache
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

type reconciler struct {
	client  client.Client
	reader  client.Reader // live
	pods    client.Reader
	runner  action.Runner
	clock   clock.PassiveClock
	classes map[appspec.AccessMode]string
}

// Register adds the controller to a manager, whose cache needs only what Cached describes.
// Requests are names of Apps.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), runner: action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName)},
		clock: o.Clock, classes: o.Classes,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	if r.classes == nil {
		r.classes = appspec.DefaultClasses
	}
	made := ctrl.NewControllerManagedBy(mgr).
		Named("apps").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&tarnv1.App{}, builder.WithPredicates(asked())).
		Watches(&appsv1.Deployment{}, handler.EnqueueRequestsFromMapFunc(ofLabel), builder.OnlyMetadata).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(ofLabel), builder.OnlyMetadata).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.ofClaim)).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.ofClass), builder.WithPredicates(allowsMore()))
	if o.Pods != nil {
		r.pods = o.Pods
		ofPod := handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, pod *corev1.Pod) []reconcile.Request { return ofLabel(ctx, pod) })
		made = made.WatchesRawSource(source.Kind(o.Pods, &corev1.Pod{}, ofPod, failing()))
	}
	return made.Complete(r)
}

// Reconcile gathers, plans, applies and reports for one App.
//
// Two decisions use the API server's state instead of the cache: what to do at the end of an
// App, and what to reject. The cache may show a new App while it still shows objects of an
// earlier App of that name. If the cache does not have an App, Reconcile does not ask the API
// server, because any object with an App's label may have named it.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	if app, err := kube.Get(ctx, r.client, request.NamespacedName, &tarnv1.App{}); err != nil || app == nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	v, err := r.gather(ctx, r.client, request.NamespacedName)
	if err == nil && v.App != nil && (v.App.DeletionTimestamp != nil && len(plan(v)) > 0 || refusal(v) != "") {
		v, err = r.gather(ctx, r.reader, request.NamespacedName)
	}
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	run := r.begin(v)
	err = apply(ctx, run, v, plan(v))
	err = errors.Join(err, run.Do(ctx, report(v, now)...))
	return kube.Outcome(err, time.Time{}, now)
}
