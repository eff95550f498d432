package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// step is how long a plugin works without a break, so that a volume of a million files does
	// not block a worker.
	step = 10 * time.Second
)

// Options are what the controller needs besides the manager.
type Options struct {
	// Plugins are the plugins that this process runs.
	Plugins []plugin.Plugin
	// Namespace is Tarn's own. Volumes of claims there hold no user data.
	Namespace string
	// MaxConcurrent is how many volumes are reconciled at once; 0 means one.
	MaxConcurrent int
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

type reconciler struct {
	client  client.Client
	reader  client.Reader // live
	claims  kube.Claims
	plugins map[string]plugin.Plugin
	events  events.EventRecorder
	clock   clock.PassiveClock

	namespace string
}

// Register adds the controller to a manager. Requests are names of volumes: those of the
// plugins, and pvc-<uid> for claims that were assigned to a plugin.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), plugins: map[string]plugin.Plugin{},
		claims: kube.Claims{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		events: mgr.GetEventRecorder(kube.ControllerName), clock: o.Clock, namespace: o.Namespace,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	for _, p := range o.Plugins {
		if p.Creator == nil || r.plugins[p.Name].Creator != nil {
			return fmt.Errorf("plugin %q: each has a name of its own and a Creator", p.Name)
		}
		r.plugins[p.Name] = p
	}
	if err := r.addIndexes(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := kube.IndexClaims(context.Background(), mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("inprocess").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&corev1.PersistentVolume{}, builder.WithPredicates(predicate.NewPredicateFuncs(r.ourVolume), ofOthers)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapClaim), builder.WithPredicates(predicate.NewPredicateFuncs(r.ourClaim))).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.mapClass)).
		Complete(r)
}

// Reconcile takes one volume a step further.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	v, err := r.gather(ctx, request.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := r.clock.Now()
	var p Plan
	for more := true; more && err == nil; {
		p = decide(v, now)
		more, err = r.apply(ctx, v, p)
	}
	switch {
	case errors.Is(err, errUnfinished):
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	return kube.Outcome(err, p.Next, now)
}
