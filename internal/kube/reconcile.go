package kube

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// ControllerName is the name under which Tarn's controllers post Events.
const ControllerName = "tarn-controller"

// ErrStale says that the cache is behind the API server, so that a decision made from it must not
// be carried out.
var ErrStale = errors.New("the cache is behind")

// Outcome turns the end of a reconcile into the result for controller-runtime. Conflict and
// ErrStale are not failures: the object is reconciled again as soon as the cache has caught up. at
// is when to reconcile without an event. Zero means never.
func Outcome(err error, at, now time.Time) (reconcile.Result, error) {
	if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
		return reconcile.Result{RequeueAfter: catchUpPause}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if at.IsZero() {
		return reconcile.Result{}, nil
	}
	wait := at.Sub(now)
	if wait <= 0 {
		wait = overduePause
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// overduePause is the pause before a reconcile that is overdue. A time in the past that changes
// nothing must not become a busy loop.
const overduePause = time.Second

// RateLimiter gives the pause after errors of every controller. It grows from a few milliseconds,
// and stays short enough to recover soon after an outage.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 30*time.Second)
}

// catchUpPause is how long the cache gets to catch up after a conflict or ErrStale.
const catchUpPause = 50 * time.Millisecond

// Sooner is the earlier of two times at which to reconcile; zero means never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// Backoff is the pause after the nth failure in a row, n from 1. It is first, doubled with each
// failure, and at most most. The seed spreads the retries of many objects: the same seed always
// gives the same pause, between 80% and 120% of the plain value.
func Backoff(n int32, first, most time.Duration, seed string) time.Duration {
	pause := first
	for ; n > 1 && pause < most; n-- {
		pause *= 2
	}
	pause = min(pause, most)
	var hash uint32 = 2166136261 // FNV-1a
	for i := range len(seed) {
		hash = (hash ^ uint32(seed[i])) * 16777619
	}
	return pause*4/5 + pause*2/5*time.Duration(hash%1000)/1000
}

// Soon enqueues objects after a pause. Function concerned names the objects, which have no
// namespace, from an object before and after an event. For a created object old is nil, for a
// deleted one current is nil. The queue holds one entry per name, so an object named by a thousand
// events within the pause is reconciled once.
func Soon(pause time.Duration, concerned func(ctx context.Context, old, current client.Object) []string) handler.Funcs {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, q queue, old, current client.Object) {
		for _, name := range concerned(ctx, old, current) {
			q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}, pause)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, q, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, q, e.Object, nil) },
	}
}

// Later passes everything but the objects that exist when the process starts. It is for objects
// whose events enqueue other objects. At the start those come by themselves, and finding them would
// list all of them: 6 MiB for ten thousand volumes.
func Later() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
}

// ProvisionerJudged passes the updates of a PavProvisioner that may change how it is used: its spec
// changed, it was accepted or rejected, or it is being deleted. The counts in its status change
// with every volume and pass nothing. As with Later, provisioners that exist when the process
// starts do not pass.
func ProvisionerJudged() predicate.Predicate {
	return predicate.And(Later(), predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*pavv1.PavProvisioner)
		now, ok2 := e.ObjectNew.(*pavv1.PavProvisioner)
		if !ok || !ok2 {
			return true
		}
		return old.Generation != now.Generation || (old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) ||
			!equality.Semantic.DeepEqual(accepted(old), accepted(now))
	}})
}

func accepted(p *pavv1.PavProvisioner) any {
	return meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
}
