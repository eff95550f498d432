package service

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// turns serializes the changes to one application within one process. Without it, concurrent
// changes would conflict with each other, and each would be retried many times. Its zero value is
// ready.
type turns struct {
	mu sync.Mutex
	of map[client.ObjectKey]*turn
}

// turn is the right to change one application. The goroutine that has put something into taken
// holds it.
type turn struct {
	taken chan struct{}
	users int // holder and waiters
}

// take waits for the right to change an application. The caller must call done afterwards.
func (t *turns) take(ctx context.Context, app client.ObjectKey) (done func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[client.ObjectKey]*turn{}
	}
	one := t.of[app]
	if one == nil {
		one = &turn{taken: make(chan struct{}, 1)}
		t.of[app] = one
	}
	one.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(t.of, app)
		}
	}
	select {
	case one.taken <- struct{}{}:
		return func() { <-one.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
