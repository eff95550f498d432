package stages

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The caller of wakeUp serves a publish call, or delivers an event of /pav/ready or of the
// informer. It must not wait for a worker that has not begun or has ended.
func TestWhoWakesTheWorkerWaitsForNobody(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	const many = 1000
	wake := func(when string) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range many {
				s.wakeUp(fmt.Sprint("stage-", i))
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("it waits when the worker %s", when)
		}
	}
	wake("has not begun")
	queue := priorityqueue.New[reconcile.Request]("test")
	if err := s.wakes.start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	wake("has much to do")
	looked := map[string]bool{}
	for len(looked) < many {
		request, ended := queue.Get()
		if ended || looked[request.Name] {
			t.Fatalf("after %d stages the worker gets %v, ended %t", len(looked), request, ended)
		}
		looked[request.Name] = true
		queue.Done(request)
	}
	queue.ShutDown()
	wake("has ended")
}
