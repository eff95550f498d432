package protect

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
)

// Options are what the controllers need besides the manager.
type Options struct {
	// Pods is kube.AllPods.
	Pods cache.Cache
	// MaxConcurrent is how many namespaces, and how many volumes, are reconciled at once; 0 means
	// one.
	MaxConcurrent int
	// Clock is the clock to use; nil means the real one.
	Clock clock.PassiveClock
}

// claims reconciles the claims of a namespace.
type claims struct {
	client client.Reader
	runner action.Runner
	live   client.Reader
	pods   client.Reader
	clock  clock.PassiveClock
	pace   *pace
}

// volumes reconciles one volume.
type volumes struct {
	client client.Reader
	runner action.Runner
	live   client.Reader
	clock  clock.PassiveClock
}

// Register adds both controllers to a manager. One queue holds namespaces, as requests without a
// name; the other holds names of volumes.
func Register(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	options := controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}
	runner := action.Runner{Client: mgr.GetClient()}
	c := &claims{client: mgr.GetClient(), runner: runner, live: mgr.GetAPIReader(), pods: o.Pods, clock: o.Clock, pace: newPace()}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("protect-claims").
		WithOptions(options).
		Watches(&corev1.PersistentVolumeClaim{}, eachNamespace(unsettledClaim)).
		Watches(&tarnv1.PavStage{}, c.eachUnmounted()).
		WatchesRawSource(source.Kind[client.Object](o.Pods, &corev1.Pod{}, eachNamespace(freeing))).
		Complete(c)
	if err != nil {
		return err
	}
	options.RateLimiter = kube.RateLimiter()
	v := &volumes{client: mgr.GetClient(), runner: runner, live: mgr.GetAPIReader(), clock: o.Clock}
	return ctrl.NewControllerManagedBy(mgr).
		Named("protect-volumes").
		WithOptions(options).
		Watches(&corev1.PersistentVolume{}, eachVolume()).
		Watches(&corev1.PersistentVolumeClaim{}, v.eachClaimed()).
		Complete(v)
}

// Reconcile gathers, plans and applies.
func (r *claims) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, request.Namespace, now)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	p := planClaims(v)
	err = errors.Join(apply(ctx, &r.runner, p), v.ListError)
	if err != nil && !apierrors.IsConflict(err) && !p.Next.IsZero() {
		// A claim whose patch is rejected must not delay the claims that wait for the list of pods.
		// Its backoff begins after the list.
		log.FromContext(ctx).Error(err, "writing finalizers")
		err = nil
	}
	return kube.Outcome(err, p.Next, now)
}

// Reconcile gathers, plans and applies.
func (r *volumes) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, request.NamespacedName)
	if err != nil || v == nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	p := planVolume(v)
	return kube.Outcome(r.runner.Do(ctx, p.Actions...), p.Next, now)
}

// writers is how many finalizers are written at once. Deleting a namespace deletes thousands of
// objects, and each write is a round trip.
const writers = 8

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=patch

// apply carries out the whole plan, and continues after a failed write, as the objects are
// independent. It returns all errors joined.
func apply(ctx context.Context, runner *action.Runner, p Plan) error {
	failed := make([]error, len(p.Actions))
	workqueue.ParallelizeUntil(ctx, writers, len(p.Actions), func(i int) { failed[i] = runner.Do(ctx, p.Actions[i]) })
	return errors.Join(append(failed, ctx.Err())...)
}
