package kube

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

const (
	// tooShort is how long a watch without events must last. client-go takes a shorter one for a
	// failure.
	tooShort = time.Second
	// maxRepeats is how often such a watch is repeated before its informer sees the end.
	maxRepeats = 4
)

// SteadyInformer is an informer that continues if the API server ends its watch before the first
// event. It is for Options.NewInformer of a cache.
//
// The API server ends all watches of a kind when very many of its objects change at once. Watches
// begun a moment ago may have sent nothing by then. A usual informer would wait for 0.8 to 1.6 s,
// list everything again, and see no events meanwhile.
func SteadyInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	if l, ok := lw.(*toolscache.ListWatch); ok && l.WatchFuncWithContext != nil {
		begin := l.WatchFuncWithContext
		l.WatchFuncWithContext = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			first, err := begin(ctx, options)
			if err != nil || ptr.Deref(options.SendInitialEvents, false) { // a watch with initial events sends them at once
				return first, err
			}
			// A watch that sent nothing can be repeated from the version at which it began.
			return repeatWatch(first, func() (watch.Interface, error) { return begin(ctx, options) }), nil
		}
	}
	return toolscache.NewSharedIndexInformer(lw, example, resync, indexers)
}

// steadyWatch is one watch to its reader, and one or more to the API server.
type steadyWatch struct {
	events  chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

func repeatWatch(first watch.Interface, again func() (watch.Interface, error)) *steadyWatch {
	s := &steadyWatch{events: make(chan watch.Event), stopped: make(chan struct{})}
	go s.run(first, again)
	return s
}

func (s *steadyWatch) ResultChan() <-chan watch.Event { return s.events }
func (s *steadyWatch) Stop()                          { s.stop.Do(func() { close(s.stopped) }) }

func (s *steadyWatch) run(now watch.Interface, again func() (watch.Interface, error)) {
	defer close(s.events)
	for left := maxRepeats; ; left-- {
		began := time.Now()
		ended := s.forward(now)
		now.Stop()
		if !ended || left == 0 || time.Since(began) >= tooShort {
			return
		}
		var err error
		if now, err = again(); err != nil {
			return // its informer asks too, and knows what to make of the answer
		}
	}
}

// forward passes events on until the watch ends. It says whether the API server ended the watch
// before the first event.
func (s *steadyWatch) forward(from watch.Interface) bool {
	silent := true
	for {
		select {
		case event, more := <-from.ResultChan():
			if !more {
				return silent
			}
			silent = false
			select {
			case s.events <- event:
			case <-s.stopped:
				return false
			}
		case <-s.stopped:
			return false
		}
	}
}
