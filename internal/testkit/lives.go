package testkit

import (
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
)

// Life is something that a controller must bring to its end, even if the controller is killed
// meanwhile.
type Life interface {
	// Run starts the controller, with the rights it has in a cluster.
	Run(c *rest.Config) (stop func())
	// Live waits for the end. Check wants the expected objects then, and nothing else.
	Live()
	Check()
}

// Span is a life's name and the writes at which its controller is killed, counted from 1. From 0
// means the first write, To 0 the last. A part that several lives share need be tested in only one.
type Span struct {
	Name     string
	From, To int
}

// Begin builds the life of a name, in a world of its own. Names that differ after the dash are
// variants of one life. config is for the controllers in it.
type Begin func(t *testing.T, server *rest.Config, span int, name string) (life Life, config *rest.Config)

// AtTheirWrites runs each life whole, and then with its controller killed at each of its writes.
func AtTheirWrites(t *testing.T, spans []Span, begin Begin) {
	t.Helper()
	live := func(t *testing.T, server *rest.Config, span, at int) (writes int) {
		life, config := begin(t, server, span, fmt.Sprintf("%s-%d", spans[span].Name, at))
		k := NewKiller(at)
		stop := k.Life(config, life.Run)
		life.Live()
		stop()
		life.Check()
		return k.Writes()
	}
	type death struct{ span, at int }
	var deaths []death
	t.Run("whole", func(t *testing.T) {
		server := OwnAPIServer(t)
		for i, span := range spans {
			t.Run(span.Name, func(t *testing.T) {
				last := live(t, server, i, 0)
				if span.To > 0 {
					last = min(last, span.To)
				}
				if last < span.From {
					t.Errorf("it took %d writes, and its first death is to be at %d", last, span.From)
				}
				for at := max(span.From, 1); at <= last; at++ {
					deaths = append(deaths, death{i, at})
				}
			})
		}
	})
	AtEveryWrite(t, len(deaths), func(t *testing.T, server *rest.Config, n int) {
		d := deaths[n-1]
		t.Run(spans[d.span].Name, func(t *testing.T) { live(t, server, d.span, d.at) })
	})
}

// Forestalled runs each life with a Rival that writes before each of its writes.
func Forestalled(t *testing.T, spans []Span, begin Begin) {
	t.Helper()
	t.Parallel()
	server := OwnAPIServer(t)
	for i, span := range spans {
		t.Run(span.Name, func(t *testing.T) {
			life, config := begin(t, server, i, span.Name+"-rival")
			rival := &Rival{}
			wrapped, err := rival.Wrap(config)
			if err != nil {
				t.Fatal(err)
			}
			stop := life.Run(wrapped)
			life.Live()
			stop()
			life.Check()
			if rival.Refusals() == 0 {
				t.Error("no write was rejected: the rival has done nothing")
			}
		})
	}
}
