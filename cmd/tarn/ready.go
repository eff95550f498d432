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

// syncing is what a readiness check asks of a cache.
type syncing interface{ WaitForCacheSync(context.Context) bool }

const (
	// readyTimeout is how long a readiness check may take.
	readyTimeout = time.Second
	// readyAgain is how often a check that finds no leader looks within that time: a leader
	// renews its lease several times a second, and one that ends in order is followed in
	// half of one.
	readyAgain = 100 * time.Millisecond
)

// ready says whether claims are served: the caches are filled, which needs Tarn's
// resources and rights to be there, and this controller leads or another one does. So a
// rollout that is through says that Tarn works, though most of its pods stand by.
func ready(caches syncing, live client.Reader, elected <-chan struct{}) healthz.Checker {
	return (&readiness{caches: caches, live: live, elected: elected}).check
}

// readiness is what a controller knows of the one that leads.
type readiness struct {
	caches  syncing
	live    client.Reader
	elected <-chan struct{}

	mu sync.Mutex
	// seen is the lease as last looked at; nil before the first look.
	seen *leaseState
	// renewed is when, by this clock, it was first seen to be renewed as it is now.
	renewed time.Time
}

// leaseState is what a leader changes by leading: who holds the lease, and since when.
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
		reason = r.led(ctx)
		return reason == nil, nil
	})
	if err == nil {
		return nil
	}
	return reason
}

// led says why nobody leads. A leader that was killed is named by its lease for ever, and
// its clock is not ours: what counts is that the lease was seen to change, not longer ago
// than a leader may be silent.
func (r *readiness) led(ctx context.Context) error {
	select {
	case <-r.elected:
		return nil
	default:
	}
	lease := &coordinationv1.Lease{} // without a holder, as one that is not there
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
