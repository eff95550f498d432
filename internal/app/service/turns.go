package service

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// turns has the changes of one application that come at once to one process made one
// after the other: each would only overtake the others' write and be overtaken by it, as
// many times as there are of them. Its zero value is ready.
type turns struct {
	mu sync.Mutex
	of map[client.ObjectKey]*turn
}

// turn is the right to change one application: who can put something into taken has it.
type turn struct {
	taken chan struct{}
	users int // who has it or waits for it
}

// take waits for the right to change an application. Whoever gets it calls done.
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
