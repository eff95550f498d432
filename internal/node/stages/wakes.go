package stages

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// wakes are stages the worker has to look at though no event tells. Whoever adds one may hold
// a call of the kubelet's, or be what hears of files and events: a channel would have him wait
// when the worker has not begun, and for ever when it has ended. The zero value is ready for use.
type wakes struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the worker begins
	early map[string]bool                                         // by name of the stage, until then
}

func (w *wakes) add(stage string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.Add(requestFor(stage)) // which drops what comes when the worker has ended
		return
	}
	if w.early == nil {
		w.early = map[string]bool{}
	}
	w.early[stage] = true
}

// start is a source of the worker's queue.
func (w *wakes) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	for stage := range w.early {
		queue.Add(requestFor(stage))
	}
	w.early = nil
	return nil
}

func requestFor(stage string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: stage}}
}
