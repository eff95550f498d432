package plugin

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAPluginThatHasMoreToDoIsNoFailure(t *testing.T) {
	failure := errors.New("the disk is gone")
	untilStopped := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		call func(context.Context) (int, error)
		want error
	}{
		{"done in time", t.Context(), func(context.Context) (int, error) { return 1, nil }, nil},
		{"stopped when its time was up", t.Context(), untilStopped, errUnfinished},
		{"failed", t.Context(), func(context.Context) (int, error) { return 0, failure }, failure},
		{"failed when its time was up", t.Context(), func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, failure }, failure},
		{"stopped with the process", ended, untilStopped, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := work(c.ctx, time.Millisecond, c.call); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
