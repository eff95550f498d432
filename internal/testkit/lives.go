package testkit

import (
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
)

// Life is something that a controller has to bring to its end, whatever becomes of that
// controller meanwhile.
type Life interface {
	// Run starts the controller, with the rights it has in a cluster.
	Run(c *rest.Config) (stop func())
	// Live waits for the end; Check wants what should be there then, and nothing else.
	Live()
	Check()
}

// Span is a life by its name, and the writes at which its controller is killed, counted from
// 1; 0 is the first, and the last. What several lives have in common need be tried in one only.
type Span struct {
	Name     string
	From, To int
}

// Begin builds the life of a name, of which there are several that differ in what comes
// after the dash, in a world of its own. config is for those who act in it.
type Begin func(t *testing.T, server *rest.Config, span int, name string) (life Life, config *rest.Config)

// AtTheirWrites lives each life whole, and then with its controller killed at each of its writes.
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

// Forestalled lives each life with a Rival that writes first each time.
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
