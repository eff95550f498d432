package testkit

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Delayed is a queue that keeps what is added to it later, by name, and takes nothing at
// once.
type Delayed struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	// Added are the pauses by name.
	Added map[string]time.Duration
}

// AddAfter implements the queue.
func (d *Delayed) AddAfter(r reconcile.Request, after time.Duration) {
	if d.Added == nil {
		d.Added = map[string]time.Duration{}
	}
	d.Added[r.Name] = after
}
