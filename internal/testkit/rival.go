package testkit

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Rival writes to an object right before the tested client's write to it arrives. A write that
// names the version it was computed from is then rejected. The Rival lets the write after a
// rejected one pass. It ignores events and leases.
type Rival struct {
	mu      sync.Mutex
	refused map[string]bool
	count   int
	written int
}

// Refusals is how many writes were rejected because of the Rival.
func (v *Rival) Refusals() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.count
}

// Wrap gives a configuration whose writes the Rival precedes.
func (v *Rival) Wrap(config *rest.Config) (*rest.Config, error) {
	own, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	host := config.Host
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !isWrite(r) || r.Method == http.MethodPost {
				return next.RoundTrip(r)
			}
			path := strings.TrimSuffix(r.URL.Path, "/status")
			if err := v.forestall(own, host, path); err != nil {
				return nil, err
			}
			response, err := next.RoundTrip(r)
			v.note(path, err == nil && response.StatusCode == http.StatusConflict)
			return response, err
		})
	})
	return config, nil
}

// forestall writes an annotation, unless the last write was rejected.
func (v *Rival) forestall(own *http.Client, host, path string) error {
	v.mu.Lock()
	v.written++
	enough, n := v.refused[path], v.written
	v.mu.Unlock()
	if enough {
		return nil
	}
	body := fmt.Sprintf(`{"metadata": {"annotations": {"rival": "%d"}}}`, n)
	r, err := http.NewRequest(http.MethodPatch, host+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/merge-patch+json")
	response, err := own.Do(r)
	if err != nil {
		return err
	}
	return response.Body.Close() // a deleted object cannot be forestalled
}

func (v *Rival) note(path string, refused bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refused == nil {
		v.refused = map[string]bool{}
	}
	if v.refused[path] = refused; refused {
		v.count++
	}
}
