//go:build integration

package retention

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is one claim with its volume, and a stand-in for the binder and for a driver that is
// not Tarn's. The driver destroys every Released volume with policy Delete at once.
type world struct {
	t      *testing.T
	ctx    context.Context
	config *rest.Config
	client client.WithWatch
	name   string
	claim  *corev1.PersistentVolumeClaim
	// hasty releases the volume while the claim still exists, as the two caches of a controller
	// may show it.
	hasty bool
	// early receives what was destroyed too early.
	early chan string
}

func newWorld(t *testing.T, config *rest.Config, name, retention string, change ...func(*world)) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	w := &world{t: t, ctx: ctx, config: config, client: testkit.Client(t, config), name: name, early: make(chan string, 1)}
	for _, c := range change {
		c(w)
	}
	w.must(w.client.Create(ctx, testkit.Class(name, func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{tarnv1.AnnotationRetention: retention}
	})))
	w.claim = testkit.Claim("default", name, "", name, func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"app": "shop"} })
	w.must(w.client.Create(ctx, w.claim))
	w.must(w.client.Create(ctx, testkit.Volume(testkit.Record(w.claim, name, tarnv1.VolumeCreated), func(v *corev1.PersistentVolume) {
		v.ObjectMeta = metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnProvisionedBy: name}}
		v.Spec.StorageClassName = name
	})))
	done := make(chan error, 1)
	go func() { done <- w.cluster() }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// cluster binds, releases and destroys until the test ends. It retries a rejected request in
// the next round.
func (w *world) cluster() error {
	for {
		vol, claim := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
		_, err := kube.Get(w.ctx, w.client, client.ObjectKey{Name: w.name}, vol)
		there, claimErr := kube.Get(w.ctx, w.client, client.ObjectKeyFromObject(w.claim), claim)
		switch {
		case w.ctx.Err() != nil:
			return nil //nolint:nilerr // the case is over
		case err != nil || claimErr != nil:
			return errors.Join(err, claimErr)
		}
		if there != nil && there.UID != w.claim.UID { // another claim of that name, with another volume
			there = nil
		}
		w.serve(vol, there)
		select {
		case <-w.ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *world) serve(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	phase := corev1.VolumeBound
	if claim == nil || w.hasty && claim.DeletionTimestamp != nil {
		phase = corev1.VolumeReleased
	}
	switch {
	case w.hasty && phase == corev1.VolumeReleased && vol.Status.Phase != phase:
		vol.Status.Phase = phase
		_ = w.client.Status().Update(w.ctx, vol)
	case claim != nil && claim.DeletionTimestamp != nil:
		base := claim.DeepCopy()
		claim.Finalizers = nil
		_ = w.client.Patch(w.ctx, claim, client.MergeFrom(base))
	case claim != nil && claim.Spec.VolumeName == "":
		claim.Spec.VolumeName = w.name
		_ = w.client.Update(w.ctx, claim)
	case vol.Name == "":
	case vol.Status.Phase != phase:
		vol.Status.Phase = phase
		_ = w.client.Status().Update(w.ctx, vol)
	case vol.DeletionTimestamp != nil:
		base := vol.DeepCopy()
		vol.Finalizers = nil
		_ = w.client.Patch(w.ctx, vol, client.MergeFrom(base))
	case phase == corev1.VolumeReleased && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		if until, known, err := volume.TrashedUntil(vol); err != nil || !known || time.Now().Before(until) {
			select {
			case w.early <- vol.ResourceVersion:
			default:
			}
		}
		_ = w.client.Delete(w.ctx, vol)
	}
}

// run starts the controller with the account it has in a cluster, and returns a function that
// stops it.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.t.Helper()
	return testkit.Run(w.ctx, w.t, restConfig, func(mgr ctrl.Manager) error { return Register(mgr, Options{Namespace: "tarn-system"}) })
}

// volume waits until check returns an empty string for the volume, and otherwise reports what
// check says. check gets nil once the volume is gone.
func (w *world) volume(what string, check func(*corev1.PersistentVolume) string) {
	w.t.Helper()
	for {
		vol := &corev1.PersistentVolume{}
		err := w.client.Get(w.ctx, client.ObjectKey{Name: w.name}, vol)
		if apierrors.IsNotFound(err) {
			vol = nil
		}
		wrong := check(vol)
		if wrong == "" {
			return
		}
		select {
		case <-w.ctx.Done():
			w.t.Fatalf("%s: %s: %v", what, wrong, marks(vol))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
