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

// Soon enqueues objects after a pause. Function concerned names the objects, which have no
// namespace, from an object before and after an event. For a created object old is nil, for a
// deleted one current is nil. The queue holds one entry per name, so an object named by a thousand
// events within the pause is reconciled once.
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
