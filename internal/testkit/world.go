package testkit

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// World is the environment of a case against an API server. Packages embed it in theirs.
type World struct {
	T *testing.T
	// Ctx ends with the case, or when the case has taken too long.
	Ctx    context.Context
	Config *rest.Config
	Client client.WithWatch
	Mirror *Mirror

	cancel context.CancelFunc
}

// Limit ends a case that waits in vain. It does not measure speed: beside other packages, on a
// machine at a third of its usual speed, seconds have become a minute.
const Limit = 3 * time.Minute

// NewWorld gives a case a World, which ends with it, or at the Limit.
func NewWorld(t *testing.T, config *rest.Config) World {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	t.Cleanup(cancel)
	return World{T: t, Ctx: ctx, Config: config, Client: Client(t, config), Mirror: MirrorOf(t, config), cancel: cancel}
}

// Must ends the case on an error.
func (w *World) Must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// PodsMayRun makes the service account of a namespace's pods, which in a cluster another controller
// makes. It does so once, however many cases share the namespace.
func (w *World) PodsMayRun(namespace string) {
	w.T.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	w.Must(client.IgnoreAlreadyExists(w.Client.Create(w.Ctx, account)))
}

// Eventually waits until check returns "". At the limit it ends the case with the last result.
func (w *World) Eventually(what string, check func() string) {
	w.T.Helper()
	wrong := ""
	if !w.Mirror.Until(w.Ctx, func() bool { wrong = check(); return wrong == "" }) {
		w.T.Fatalf("%s: %s", what, wrong)
	}
}

// Play calls round after each change until the case ends. round acts as the rest of the cluster. A
// request that the API server rejects is left to the next round; an error fails the case.
func (w *World) Play(round func() error) {
	done := make(chan error, 1)
	go func() {
		var err error
		w.Mirror.Until(w.Ctx, func() bool { err = round(); return err != nil })
		if w.Ctx.Err() != nil {
			err = nil // the case is over
		}
		done <- err
	}()
	w.T.Cleanup(func() {
		w.cancel()
		if err := <-done; err != nil {
			w.T.Error(err)
		}
	})
}
