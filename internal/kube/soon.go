package kube

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Soon enqueues, after a pause, the objects without a namespace that concerned names of an
// object before and after an event: old is nil for a new one, current for one that is
// gone. The queue holds one entry a name, however many events name it meanwhile, so what
// changes a thousand times in the pause is looked at once.
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
