package testkit

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Delayed is a queue that records what is added with a delay, by name. It must not be given
// anything without a delay.
type Delayed struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	// Added are the delays by name.
	Added map[string]time.Duration
}

// AddAfter implements the queue.
func (d *Delayed) AddAfter(r reconcile.Request, after time.Duration) {
	if d.Added == nil {
		d.Added = map[string]time.Duration{}
	}
	d.Added[r.Name] = after
}
