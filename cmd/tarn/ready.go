package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/kube"
)

// syncing is what a readiness check asks of a cache.
type syncing interface{ WaitForCacheSync(context.Context) bool }

// readyTimeout is how long a readiness check may take.
const readyTimeout = time.Second

// ready says whether claims are served: the caches are filled, which needs Tarn's
// resources and rights to be there, and this controller leads or another one does. So a
// rollout that is through says that Tarn works, though most of its pods stand by.
func ready(caches syncing, live client.Reader, elected <-chan struct{}) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if !caches.WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		select {
		case <-elected:
			return nil
		default:
		}
		lease := &coordinationv1.Lease{}
		if err := live.Get(ctx, client.ObjectKey{Namespace: cli.Namespace, Name: kube.ControllerName}, lease); err != nil {
			return fmt.Errorf("no controller leads: %w", err)
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return errors.New("no controller leads")
		}
		return nil
	}
}
