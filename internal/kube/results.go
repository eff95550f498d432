package kube

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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
