package testkit

import (
	"errors"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// errDead is what a killed process's requests end in.
var errDead = errors.New("the process was killed here")

// Killer makes a client configuration die at one of its writes, as a process does
// that is killed there: the write is carried out, its answer is lost, and so is all
// that would have come after it. Events and leases do not count as writes.
type Killer struct {
	mu     sync.Mutex
	writes int
	at     int
	dead   chan struct{}
}

// NewKiller dies at the nth write, counted from 1; 0 never dies.
func NewKiller(n int) *Killer {
	return &Killer{at: n, dead: make(chan struct{})}
}

// Dead is closed when the process has died.
func (k *Killer) Dead() <-chan struct{} { return k.dead }

// Writes is how many writes there were.
func (k *Killer) Writes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// Wrap gives a configuration whose requests go through the Killer.
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
