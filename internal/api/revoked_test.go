//go:build integration

package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/testkit"
)

func TestAStreamEndsWhenItsCallerMaySeeTheAppNoMore(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = DefaultLimits; o.Limits.Heartbeat = 20 * time.Millisecond })
	c := w.tenant("revoked")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
	c.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	err := c.through().Events(ctx, "", "shop", func(appplan.Event) error {
		return w.admin.Delete(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "deployer"}})
	})
	var answered *appplan.Error
	if !errors.As(err, &answered) || answered.Code != appplan.NotFound || answered.Message != "app 'shop' not found" {
		t.Errorf("the stream ended with %v, want that there is no such app", err)
	}
}

func TestWhoeverKeepsStrangersBusyKeepsOutNobodyElse(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("regular")
	c.get("/v1/apps").want(http.StatusOK)
	w.server.door.addresses = newLimiter(0, 0)                    // as many made-up tokens leave it
	w.server.door.reviewed.Remove(sha256.Sum256([]byte(c.token))) // as time does
	c.get("/v1/apps").want(http.StatusOK)
	stranger := &visitor{w: w, namespace: c.namespace, token: "made-up"}
	stranger.get("/v1/apps").want(http.StatusTooManyRequests)
}
