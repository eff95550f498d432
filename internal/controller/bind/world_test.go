//go:build integration

package bind

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is an API server and what one case creates on it.
type world struct {
	t      *testing.T
	ctx    context.Context
	config *rest.Config
	client client.WithWatch
	// ledger records the requests of the binders started, if it is set.
	ledger *ledger
	// pods gives the binders started a cache of all pods, as in a cluster.
	pods bool
}

func newWorld(t *testing.T, config *rest.Config) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	t.Cleanup(cancel)
	return &world{t: t, ctx: ctx, config: config, client: testkit.Client(t, config)}
}

// start runs a binder with the account it has in a cluster, until its process dies or the caller
// calls stop.
func (w *world) start(config *rest.Config, dead <-chan struct{}, o Options) (stop func()) {
	w.t.Helper()
	config = rest.CopyConfig(config)
	if w.ledger != nil {
		config = w.ledger.wrap(config)
	}
	config.Impersonate.UserName = "system:serviceaccount:tarn-system:tarn-controller"
	mgr, err := kube.NewManager(config, managerOptions())
	w.must(err)
	if w.pods {
		o.Pods, err = kube.AllPods(mgr)
		w.must(err)
	}
	w.must(Register(mgr, o))
	ctx, cancel := context.WithCancel(context.Background())
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
		Cache:      ctrlcache.Options{DefaultTransform: ctrlcache.TransformStripManagedFields()},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// claim creates a claim in namespace default, with its given status. It patches the status, as a
// running binder may have written one by then.
func (w *world) claim(name, size string, with ...claimWith) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := claimOf(size, append(with, called("default", name), uid(""))...)
	c.ResourceVersion = ""
	status := c.Status
	patch, err := json.Marshal(map[string]any{"status": status})
	w.must(err)
	w.must(w.client.Create(w.ctx, c))
	if status.Phase != corev1.ClaimPending {
		w.must(w.client.Status().Patch(w.ctx, c, client.RawPatch(types.MergePatchType, patch)))
	}
	return c
}

// volume creates a volume in its given phase.
func (w *world) volume(name, size string, with ...volumeWith) *corev1.PersistentVolume {
	w.t.Helper()
	v := volumeOf(name, size, with...)
	v.UID, v.ResourceVersion = "", ""
	if v.Spec.ClaimRef != nil {
		v.Spec.ClaimRef.Namespace = "default"
	}
	phase := v.Status.Phase
	w.must(w.client.Create(w.ctx, v))
	if phase != corev1.VolumePending {
		w.phase(v, phase)
	}
	return v
}

// phase sets a volume's phase. It patches, so that no lost answer of a busy API server can fail a
// test before it has begun.
func (w *world) phase(v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"status":{"phase":%q}}`, phase)
	w.must(w.client.Status().Patch(w.ctx, v, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// class creates a class with the name of its provisioner.
func (w *world) class(name string, with ...classWith) {
	w.t.Helper()
	c := classOf(name, append([]classWith{by(name)}, with...)...)
	c.CreationTimestamp = metav1.Time{}
	w.must(w.client.Create(w.ctx, c))
}

// remove deletes an object, and removes its finalizers.
func (w *world) remove(o client.Object) {
	w.t.Helper()
	w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, o)))
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	w.must(client.IgnoreNotFound(w.client.Patch(w.ctx, o, patch)))
}

// read returns the current object, nil if it is gone.
func read[T client.Object](w *world, o T) T {
	w.t.Helper()
	found, err := kube.Get(w.ctx, w.client, client.ObjectKeyFromObject(o), o)
	w.must(err)
	return found
}

// until waits until check finds nothing wrong.
func (w *world) until(check func() string) {
	w.t.Helper()
	wrong := ""
	if !testkit.MirrorOf(w.t, w.config).Until(w.ctx, func() bool { wrong = check(); return wrong == "" }) {
		w.t.Fatal(wrong)
	}
}

// joined says in which way a claim and a volume are not bound to each other.
func (w *world) joined(claim, volume string) string {
	d := done{pair: pair{claim: read(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim}})}}
	if volume == "" && d.claim != nil {
		if volume = d.claim.Spec.VolumeName; volume == "" {
			return fmt.Sprintf("claim %q has no volume", claim)
		}
	}
	d.volume = read(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}})
	if d.claim == nil {
		return fmt.Sprintf("claim %q is gone", claim)
	}
	if wrong := d.bound(); wrong != "" {
		return fmt.Sprintf("claim %q and volume %q: %s", claim, volume, wrong)
	}
	return ""
}

// claimIs says in which way a claim is not in a phase.
func (w *world) claimIs(name string, phase corev1.PersistentVolumeClaimPhase) string {
	c := read(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
	switch {
	case c == nil:
		return fmt.Sprintf("claim %q is gone", name)
	case c.Status.Phase != phase:
		return fmt.Sprintf("claim %q is %s, want %s", name, c.Status.Phase, phase)
	}
	return ""
}

// volumeIs says in which way a volume is not in a phase and pointing at a claim; claim is empty for
// none.
func (w *world) volumeIs(name string, phase corev1.PersistentVolumePhase, claim string) string {
	v := read(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}})
	switch {
	case v == nil:
		return fmt.Sprintf("volume %q is gone", name)
	case v.Status.Phase != phase || (v.Spec.ClaimRef == nil) != (claim == "") || claim != "" && v.Spec.ClaimRef.Name != claim:
		return fmt.Sprintf("volume %q is %s and points at %+v, want %s and claim %q", name, v.Status.Phase, v.Spec.ClaimRef, phase, claim)
	}
	return ""
}
