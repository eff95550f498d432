package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// ends is a watch that sends some objects and is then ended by the API server.
func ends(after time.Duration, names ...string) *watch.FakeWatcher {
	w := watch.NewFake()
	go func() {
		for _, name := range names {
			w.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		time.Sleep(after)
		w.Stop()
	}()
	return w
}

// told are the names of the objects that a watch sends until it ends.
func told(w watch.Interface) []string {
	var names []string
	for event := range w.ResultChan() {
		names = append(names, event.Object.(*corev1.Pod).Name)
	}
	return names
}

func TestAWatchThatWasEndedBeforeItToldOfAnythingGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		// watches are given out one after the other; nil stands for an error.
		watches          []func() *watch.FakeWatcher
		wantTold, wantOf int
	}{
		"at once":                     {[]func() *watch.FakeWatcher{silent(0), tells("a")}, 1, 2},
		"again and again":             {[]func() *watch.FakeWatcher{silent(0), silent(0), silent(0), tells("a")}, 1, 4},
		"not for ever":                {repeated(silent(0), maxRepeats+1), 0, maxRepeats + 1},
		"not after its time":          {[]func() *watch.FakeWatcher{silent(tooShort), tells("a")}, 0, 1},
		"not once it has told":        {[]func() *watch.FakeWatcher{tells("a", "b"), tells("c")}, 2, 1},
		"not where the next does not": {[]func() *watch.FakeWatcher{silent(0), nil}, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := 0
				lw := &toolscache.ListWatch{WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
					if options.ResourceVersion != "7" {
						t.Errorf("a watch was begun at version %q, want 7", options.ResourceVersion)
					}
					if begun++; begun > len(c.watches) || c.watches[begun-1] == nil {
						return nil, errors.New("refused")
					}
					return c.watches[begun-1](), nil
				}}
				SteadyInformer(lw, &corev1.Pod{}, 0, nil)
				w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "7"})
				if err != nil {
					t.Fatal(err)
				}
				if got := told(w); len(got) != c.wantTold || begun != c.wantOf {
					t.Errorf("it told of %q in %d watches, want %d in %d", got, begun, c.wantTold, c.wantOf)
				}
				w.Stop()
			})
		})
	}
}

func silent(after time.Duration) func() *watch.FakeWatcher {
	return func() *watch.FakeWatcher { return ends(after) }
}

func tells(names ...string) func() *watch.FakeWatcher {
	return func() *watch.FakeWatcher { return ends(0, names...) }
}

func repeated(one func() *watch.FakeWatcher, times int) []func() *watch.FakeWatcher {
	all := make([]func() *watch.FakeWatcher, times)
	for i := range all {
		all[i] = one
	}
	return all
}

func TestAWatchThatIsStoppedEndsAndStopsTheOneBelow(t *testing.T) {
	for name, events := range map[string]int{"that waits": 0, "that nobody reads": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				below := watch.NewFakeWithChanSize(events, false)
				for range events {
					below.Add(&corev1.Pod{})
				}
				w := repeatWatch(below, func() (watch.Interface, error) {
					t.Error("another was begun")
					return nil, errors.New("refused")
				})
				synctest.Wait()
				w.Stop()
				w.Stop()
				synctest.Wait()
				if !below.IsStopped() {
					t.Error("the watch below goes on")
				}
				if _, more := <-w.ResultChan(); more {
					t.Error("it tells of something after it was stopped")
				}
			})
		})
	}
}

func TestAWatchThatListsFirstAndOneThatFailsAreLeftAlone(t *testing.T) {
	fake := watch.NewFake()
	failure := errors.New("refused")
	lw := &toolscache.ListWatch{WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
		if options.SendInitialEvents == nil {
			return nil, failure
		}
		return fake, nil
	}}
	SteadyInformer(lw, &corev1.Pod{}, 0, nil)
	if w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: ptr.To(true)}); err != nil || w != watch.Interface(fake) {
		t.Errorf("got %v, %v; want the watch itself", w, err)
	}
	if _, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{}); !errors.Is(err, failure) {
		t.Errorf("got %v, want %v", err, failure)
	}
}
