//go:build integration

package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// meddler acts right after one of the controllers' writes, before they get its answer. Events and
// leases do not count as writes.
type meddler struct {
	at int // counted from 1; 0 is never
	do func()

	mu     sync.Mutex
	writes int
	done   bool
}

type through func(*http.Request) (*http.Response, error)

func (f through) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (m *meddler) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return through(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") && !strings.Contains(r.URL.Path, "/leases") {
				m.written()
			}
			return response, err
		})
	})
	return config
}

func (m *meddler) written() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.writes == m.at {
		m.do()
		m.done = true
	}
}

// count returns the number of writes so far, and whether the meddler has acted.
func (m *meddler) count() (writes int, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes, m.done
}

// The first creation fails, because such a life includes every write of one that succeeds.
func TestAClaimThatIsDeletedAfterAnyWriteOfItsProvisioningLeavesNothing(t *testing.T) {
	t.Parallel()
	server := testkit.OwnAPIServer(t)
	whole := &meddler{}
	abandon := func(name string, m *meddler) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, server, "gone-"+name, corev1.PersistentVolumeReclaimDelete, failsOnce)
			w.abandon(m)
			if created, deleted := w.kubelet.Ran(tarnv1.StepCreation), w.kubelet.Ran(tarnv1.StepDeletion); len(deleted) < len(created) {
				t.Errorf("creation pods %q have run, and deletion pods %q", created, deleted)
			}
		})
	}
	abandon("whole", whole)
	for n := 1; n <= whole.writes; n++ {
		abandon(fmt.Sprint(n), &meddler{at: n})
	}
}

// abandon deletes a claim when the meddler acts, or else when the claim is bound. It fails the test
// unless everything is then deleted. It notes the number of writes until the claim is bound.
func (w *world) abandon(m *meddler) {
	w.t.Helper()
	claim := w.claim()
	remove := func() {
		if err := client.IgnoreNotFound(w.client.Delete(w.ctx, claim)); err != nil {
			w.t.Errorf("deleting the claim: %v", err)
		}
	}
	m.do = remove
	defer w.run(m.wrap(w.config))()
	if m.at == 0 {
		w.eventually("binding", w.bound(claim))
		remove()
		bound, _ := m.count()
		defer func() { m.writes = bound }()
	}
	w.eventually("the end of the claim", func() string {
		if _, done := m.count(); !done && m.at > 0 {
			if wrong := w.bound(claim)(); wrong != "" {
				return "it was not deleted yet: " + wrong
			}
			remove() // this life took one write less: none had to be repeated
		}
		err := w.client.Get(w.ctx, client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is there (%v)", err)
		}
		return w.nothing()
	})
	w.removeProvisioner()
}
