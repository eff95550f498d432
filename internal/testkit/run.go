package testkit

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"tarn.dev/tarn/internal/kube"
)

// Run starts controllers as their account in a cluster, so that its rights are tested too. It
// returns the function that stops them. Controllers that a Killer has ended stop by themselves.
func Run(ctx context.Context, t *testing.T, c *rest.Config, register func(ctrl.Manager) error, changes ...With[*ctrl.Options]) (stop func()) {
	t.Helper()
	c = rest.CopyConfig(c)
	c.Impersonate.UserName = "system:serviceaccount:tarn-system:tarn-controller"
	options := apply(&ctrl.Options{
		Scheme: kube.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, GracefulShutdownTimeout: ptr.To(5 * time.Second),
	}, changes)
	mgr, err := kube.NewManager(c, *options)
	if err == nil {
		err = register(mgr)
	}
	if err != nil {
		t.Fatalf("starting the controllers: %v", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = mgr.Start(ctx) // a killed one ends with the error of its death
	}()
	return func() { cancel(); <-done }
}

// Run starts controllers on a configuration of the world, with the account they have in a cluster.
// It returns the function that stops them.
func (w *World) Run(c *rest.Config, register func(ctrl.Manager) error, changes ...With[*ctrl.Options]) (stop func()) {
	w.T.Helper()
	return Run(w.Ctx, w.T, c, register, changes...)
}

// Life starts controllers with run, on a configuration that the Killer ends. When the Killer has
// ended them, Life stops them and starts them again without it. The returned stop ends those that
// run.
func (k *Killer) Life(c *rest.Config, run func(*rest.Config) (stop func())) (stop func()) {
	first := run(k.Wrap(c))
	revived := make(chan func(), 1)
	ended := make(chan struct{})
	go func() {
		second := func() {}
		defer func() { revived <- second }() // also where run has failed the test, and this goroutine with it
		select {
		case <-k.Dead():
			first()
			second = run(c)
		case <-ended:
			second = first
		}
	}()
	return func() { close(ended); (<-revived)() }
}
