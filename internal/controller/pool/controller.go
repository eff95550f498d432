package pool

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
)

// DefaultPauseImage is the default image of filler pods. A filler pod need not start, so an
// image that cannot be pulled does no harm.
const DefaultPauseImage = "registry.k8s.io/pause:3.10"

// gatherTime is how long the controller collects events of a pool before it reconciles the
// pool. Each reconcile reads the whole pool from the API server. A pool that is drawn from and
// refilled causes a hundred events a second, and reconciling each would delay the claims.
const gatherTime = 300 * time.Millisecond

// Options are what the controller needs besides the manager.
type Options struct {
	// Namespace is where filler claims and pods are. Only Tarn may create claims there.
	Namespace string
	// PauseImage is the image of filler pods; empty means DefaultPauseImage.
	PauseImage string
	// MaxConcurrent is how many sets are reconciled at once; 0 means one.
	MaxConcurrent int
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

type reconciler struct {
	client                client.Reader // cached
	reader                client.Reader // live
	runner                action.Runner
	clock                 clock.PassiveClock
	namespace, pauseImage string
	// sharing is locked by a reconcile that decides about volumes that other sets count too.
	sharing sync.Mutex
}

// Register adds the controller to a manager. Requests are names of sets.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(),
		runner: action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName)},
		clock:  cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{}), namespace: o.Namespace, pauseImage: cmp.Or(o.PauseImage, DefaultPauseImage),
	}
	if err := kube.IndexClaims(context.Background(), mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("pool").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		Watches(&tarnv1.PersistentVolumeSet{}, r.soon(concernsSet)).
		Watches(&corev1.PersistentVolume{}, r.soon(r.concernsVolume)).
		Watches(&corev1.PersistentVolumeClaim{}, r.soon(concernsFiller), builder.WithPredicates(predicate.NewPredicateFuncs(r.isFiller))).
		Watches(&corev1.PersistentVolumeClaim{}, r.soon(r.concernsHolder), builder.WithPredicates(ends())).
		Watches(&corev1.Pod{}, r.soon(concernsFiller), builder.WithPredicates(predicate.NewPredicateFuncs(r.isFiller))).
		Watches(&tarnv1.PersistentVolumeSetScaler{}, r.soon(concernsScaler)).
		Watches(&storagev1.StorageClass{}, r.soon(concernsClass)).
		Watches(&tarnv1.PavVolume{}, r.soon(r.concernsRecord), builder.WithPredicates(predicate.NewPredicateFuncs(r.isFillerRecord))).
		Watches(&pavv1.PavProvisioner{}, r.soon(concernsAll), builder.WithPredicates(kube.ProvisionerJudged())).
		Watches(&corev1.Node{}, r.soon(concernsAll), builder.WithPredicates(opensOrCloses())).
		Complete(r)
}

// Reconcile gathers, plans, applies and reports for one set. A plan that cannot be undone is
// made again from the API server's state. A failed write does not stop the others: a rejected
// filler must not delay volumes on their way into the pool. Its rejection becomes part of the
// view.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, r.client, request.Name)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	p := plan(v, now)
	if p.Grave {
		var done func()
		v, done, err = r.gatherLive(ctx, request.Name, v.Neighbours.Any)
		defer done()
		if err != nil {
			return kube.Outcome(err, time.Time{}, now)
		}
		p = plan(v, now)
	}
	run := r.runner.Begin()
	err = run.Try(ctx, p.Actions...)
	if run.Refused != nil {
		v.Refused = run.Refused.Error()
	}
	if err != nil || !p.Ended {
		err = errors.Join(err, run.Try(ctx, report(v, now)...))
	}
	return kube.Outcome(err, p.Again, now)
}

// gatherLive reads the View from the API server. The caller must call done after its writes.
// Sets that share volumes take turns until done is called. If two decided at once, both could
// order the last volume that fits, or both give up one too many.
func (r *reconciler) gatherLive(ctx context.Context, name string, shares bool) (v *View, done func(), err error) {
	done = func() {}
	if shares {
		r.sharing.Lock()
		done = r.sharing.Unlock
	}
	v, err = r.gather(ctx, r.reader, name)
	if err == nil && v.Neighbours.Any && !shares {
		return r.gatherLive(ctx, name, true)
	}
	return v, done, err
}
