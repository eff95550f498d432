//go:build integration

package bind

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// ledger records a binder's requests about claims and volumes, in order.
type ledger struct {
	mu    sync.Mutex
	asked []request
}

// request is one read or write. path is the object's, without a subresource.
type request struct {
	method, path string
	// lost says that the write sets a claim to Lost.
	lost bool
}

// wrap returns a configuration whose requests the ledger records.
func (l *ledger) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/persistentvolume") {
				if err := l.enter(r); err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

func (l *ledger) enter(r *http.Request) error {
	is := request{method: r.Method, path: strings.TrimSuffix(r.URL.Path, "/status")}
	if r.GetBody != nil {
		copied, err := r.GetBody()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(copied)
		if err != nil {
			return err
		}
		is.lost = strings.Contains(is.path, "/persistentvolumeclaims/") && bytes.Contains(text, []byte("Lost"))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, is)
	return nil
}

// lost says whether any write set a claim to Lost.
func (l *ledger) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.asked, func(r request) bool { return r.lost })
}

// reread fails the case if the object of the nth write, whose outcome was unknown, was written
// again before it was read.
func (w *world) reread(nth int) {
	w.t.Helper()
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	writes, path := 0, ""
	for _, r := range l.asked {
		switch {
		case path != "" && r.path == path:
			if r.method != http.MethodGet {
				w.t.Errorf("case 165: %s was written anew, by %s, without having been read after write %d", path, r.method, nth)
			}
			return
		case r.method == http.MethodPut:
			if writes++; writes == nth {
				path = r.path
			}
		}
	}
}
