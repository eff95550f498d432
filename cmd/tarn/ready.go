package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kube"
)

// syncing is the part of a cache that a readiness check uses.
type syncing interface{ WaitForCacheSync(context.Context) bool }

const (
	// readyTimeout is how long a readiness check may take.
	readyTimeout = time.Second
	// readyAgain is how often a check without a leader reads the lease again within that time. A
	// leader renews its lease several times a second. After a clean end, the next one leads within
	// half a second.
	readyAgain = 100 * time.Millisecond
)

// ready says whether claims are served: the caches are filled, and this controller or another one
// leads. Filled caches show that Tarn's resources and rights exist. So a completed rollout means
// that Tarn works, though most of its pods are standbys.
func ready(caches syncing, live client.Reader, elected <-chan struct{}) healthz.Checker {
	return (&readiness{caches: caches, live: live, elected: elected}).check
}

// readiness is what a controller knows about the leader.
type readiness struct {
	caches  syncing
	live    client.Reader
	elected <-chan struct{}

	mu sync.Mutex
	// seen is the lease as last read; nil before the first read.
	seen *leaseState
	// renewed is when this process first saw the latest renewal, by its own clock.
	renewed time.Time
}

// leaseState is the part of the lease that a leader changes: the holder, and the time of its last
// renewal.
type leaseState struct {
	holder string
	at     time.Time
}

func (r *readiness) check(request *http.Request) error {
	ctx, cancel := context.WithTimeout(request.Context(), readyTimeout)
	defer cancel()
	if !r.caches.WaitForCacheSync(ctx) {
		return errors.New("the caches are not synced yet")
	}
	var reason error
	err := wait.PollUntilContextCancel(ctx, readyAgain, true, func(ctx context.Context) (bool, error) {
		why := r.led(ctx)
		if reason == nil || ctx.Err() == nil { // a read that the deadline cut off says less than the one before
			reason = why
		}
		return why == nil, nil
	})
	if err == nil {
		return nil
	}
	return reason
}

// led says why no controller leads, nil if one does. The lease names a leader forever, even one
// that was killed, and the leader's clock may differ. So a change of the lease must have been seen
// within the lease's duration.
func (r *readiness) led(ctx context.Context) error {
	select {
	case <-r.elected:
		return nil
	default:
	}
	lease := &coordinationv1.Lease{} // if it does not exist, it has no holder
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: cli.Namespace, Name: kube.ControllerName}, lease); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("no controller is the leader: %w", err)
	}
	now := leaseState{holder: ptr.Deref(lease.Spec.HolderIdentity, "")}
	if lease.Spec.RenewTime != nil {
		now.at = lease.Spec.RenewTime.Time
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen != nil && (r.seen.holder != now.holder || !r.seen.at.Equal(now.at)) {
		r.renewed = time.Now()
	}
	r.seen = &now
	if now.holder == "" {
		return errors.New("no controller is the leader: the lease has no holder")
	}
	silent := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 4)) * time.Second
	if r.renewed.IsZero() || time.Since(r.renewed) > silent {
		return fmt.Errorf("no controller is the leader: %s holds the lease, but does not renew it", now.holder)
	}
	return nil
}
