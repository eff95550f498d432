//go:build integration

package api

import (
	"context"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appplan "tarn.dev/tarn/internal/app/plan"
	appservice "tarn.dev/tarn/internal/app/service"
)

func TestAWatchThatBreaksOffIsNotBegunWithoutEnd(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("breaking")
	c.post("/v1/apps", `{"id": "shop"}`).want(http.StatusCreated)
	c.post("/v1/apps/shop/deploy", `{"app": {"image": "shop:1"}}`).want(http.StatusAccepted)
	begun := 0
	calls := &appservice.Calls{Client: interceptor.NewClient(w.admin, interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			begun++
			return watch.NewEmptyWatch(), nil
		},
	})}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	last := appplan.Progress
	if err := calls.Events(ctx, c.namespace, "shop", func(event appplan.Event) error { last = event.Kind; return nil }); err != nil || last != appplan.Expired {
		t.Errorf("the events ended with %s, %v", last, err)
	}
	if begun > 26 { // one at once, and then not before a fifth of a second is over
		t.Errorf("%d watches were begun within five seconds", begun)
	}
}
