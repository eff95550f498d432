package kube

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// With the priority queue of controller-runtime 0.24, one of the first of these managers does not
// end.
func TestAManagerEndsWhileItsControllersHaveWork(t *testing.T) {
	for round := range 30 {
		mgr, err := NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, ctrl.Options{
			Metrics: metricsserver.Options{BindAddress: "0"}, GracefulShutdownTimeout: ptr.To(5 * time.Second),
			MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
			Controller:     config.Controller{SkipNameValidation: ptr.To(true)},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var done atomic.Int32
		busy := make(chan struct{})
		work := func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			for worker := range 8 {
				go func() {
					for i := range 1000 {
						q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: strconv.Itoa(worker) + "-" + strconv.Itoa(i)}})
					}
				}()
			}
			return nil
		}
		do := func(context.Context, reconcile.Request) (reconcile.Result, error) {
			if done.Add(1) == 10 {
				close(busy)
			}
			return reconcile.Result{}, nil
		}
		err = ctrl.NewControllerManagedBy(mgr).Named("busy").WithOptions(controller.Options{MaxConcurrentReconciles: 16}).
			WatchesRawSource(source.Func(work)).Complete(reconcile.Func(do))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		<-busy
		cancel()
		if err := <-ended; err != nil {
			t.Fatalf("manager %d: %v", round, err)
		}
	}
}
