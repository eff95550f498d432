package testkit

import (
	"errors"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// errDead is the error of every request of a killed process.
var errDead = errors.New("the process was killed here")

// Killer makes a client configuration fail at one of its writes, like a process killed there. The
// API server carries out the write, but its answer and all later requests fail. Events and leases
// do not count as writes.
type Killer struct {
	mu     sync.Mutex
	writes int
	at     int
	dead   chan struct{}
}

// NewKiller fails at the nth write, counted from 1; 0 never fails.
func NewKiller(n int) *Killer {
	return &Killer{at: n, dead: make(chan struct{})}
}

// Dead is closed when the process counts as killed.
func (k *Killer) Dead() <-chan struct{} { return k.dead }

// Writes is the number of writes so far.
func (k *Killer) Writes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// Wrap gives a configuration whose requests pass through the Killer.
func (k *Killer) Wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return k.roundTrip(next, r) })
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (k *Killer) roundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	select {
	case <-k.dead:
		return nil, errDead
	default:
	}
	fatal := isWrite(r) && k.countsAsFatal()
	response, err := next.RoundTrip(r)
	if fatal {
		close(k.dead)
		if err == nil {
			err = errors.Join(errDead, response.Body.Close())
		}
		return nil, err
	}
	return response, err
}

func (k *Killer) countsAsFatal() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	return k.writes == k.at
}

func isWrite(r *http.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") && !strings.Contains(r.URL.Path, "/leases")
}
