package stages

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// wakes are stages to reconcile without an event. The zero value is ready for use. Adding one never
// blocks: the caller may serve a call of the kubelet, or deliver file and API events. A channel
// would block until the worker begins, and for ever after it has ended.
type wakes struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the worker begins
	early map[string]bool                                         // by name of the stage, until then
}

func (w *wakes) add(stage string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.Add(requestFor(stage)) // which drops it if the worker has ended
		return
	}
	if w.early == nil {
		w.early = map[string]bool{}
	}
	w.early[stage] = true
}

// start connects the worker's queue and enqueues the stages added so far.
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
