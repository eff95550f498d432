package service

import (
	"context"
	"errors"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestChangesOfOneAppTakeTurnsAndThoseOfOthersDoNot(t *testing.T) {
	all, shop, blog := &turns{}, client.ObjectKey{Namespace: "a", Name: "shop"}, client.ObjectKey{Namespace: "b", Name: "shop"}
	within, most := 0, 0
	var mu sync.Mutex
	var wait sync.WaitGroup
	other, err := all.take(t.Context(), blog)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		wait.Go(func() {
			done, err := all.take(t.Context(), shop)
			if err != nil {
				t.Error(err)
				return
			}
			defer done()
			mu.Lock()
			within++
			most = max(most, within)
			mu.Unlock()
			mu.Lock()
			within--
			mu.Unlock()
		})
	}
	wait.Wait()
	other()
	if most != 1 {
		t.Errorf("%d changed one app at a time, want 1", most)
	}
	if len(all.of) != 0 {
		t.Errorf("%d turns are remembered that nobody has or waits for", len(all.of))
	}
}

func TestWhoGivesUpLeavesTheTurnToOthers(t *testing.T) {
	all, shop := &turns{}, client.ObjectKey{Name: "shop"}
	done, err := all.take(t.Context(), shop)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := all.take(ctx, shop); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was given up", err)
	}
	done()
	if done, err = all.take(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	done()
	if len(all.of) != 0 {
		t.Errorf("%d turns are remembered that nobody has or waits for", len(all.of))
	}
}
