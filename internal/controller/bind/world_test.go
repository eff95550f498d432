//go:build integration

package bind

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // a killed binder has much to complain of
	testkit.Main(m)
}

// world is an API server and what one case makes on it.
type world struct {
	t      *testing.T
	ctx    context.Context
	config *rest.Config
	client client.WithWatch
}

func newWorld(t *testing.T, config *rest.Config) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return &world{t: t, ctx: ctx, config: config, client: testkit.Client(t, config)}
}

// start runs a binder until its process dies or the returned function is called.
func (w *world) start(config *rest.Config, dead <-chan struct{}, o Options) (stop func()) {
	w.t.Helper()
	mgr, err := ctrl.NewManager(config, managerOptions())
	w.must(err)
	w.must(Register(mgr, o))
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	go func() {
		select {
		case <-dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	return func() {
		w.t.Helper()
		cancel()
		w.must(<-done)
	}
}

func managerOptions() ctrl.Options {
	return ctrl.Options{
		Scheme: kube.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache:      cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// makeClaim and makeVolume create an object with a status.
func (w *world) makeClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c = c.DeepCopy()
	c.UID, c.ResourceVersion = "", ""
	status := c.Status
	w.must(w.client.Create(w.ctx, c))
	if status.Phase != c.Status.Phase {
		c.Status = status
		w.must(w.client.Status().Update(w.ctx, c))
	}
	return c
}

func (w *world) makeVolume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	w.t.Helper()
	v = v.DeepCopy()
	v.UID, v.ResourceVersion = "", ""
	phase := v.Status.Phase
	w.must(w.client.Create(w.ctx, v))
	if phase != v.Status.Phase {
		v.Status.Phase = phase
		w.must(w.client.Status().Update(w.ctx, v))
	}
	return v
}

// until waits until check finds nothing wrong.
func (w *world) until(check func() string) {
	w.t.Helper()
	for {
		wrong := check()
		if wrong == "" {
			return
		}
		select {
		case <-w.ctx.Done():
			w.t.Fatal(wrong)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// joined says in which way a claim and a volume are not bound to each other.
func (w *world) joined(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) string {
	c, vol := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(claim), c); err != nil {
		return err.Error()
	}
	if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(v), vol); err != nil {
		return err.Error()
	}
	ref := vol.Spec.ClaimRef
	if c.Spec.VolumeName != vol.Name || c.Status.Phase != corev1.ClaimBound || ref == nil || ref.UID != c.UID || vol.Status.Phase != corev1.VolumeBound {
		return fmt.Sprintf("claim %s is %s on %q, volume %s is %s for %+v", c.Name, c.Status.Phase, c.Spec.VolumeName, vol.Name, vol.Status.Phase, ref)
	}
	return ""
}

func clientKey(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

func metaNamed(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
