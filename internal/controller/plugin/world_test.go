//go:build integration

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// worlds counts the worlds of this process, so that a repeated test has its own.
var worlds atomic.Int32

// world is one API server with one plugin, and a class, a node and a namespace of the same
// name. Its controllers see only the claims of that namespace. A controller fulfils promises of
// any plugin, so tests that run in parallel would do each other's work.
type world struct {
	t      *testing.T
	ctx    context.Context
	config *rest.Config
	client client.WithWatch
	name   string
	fake   *plugintest.Fake
	plugin plugin.Plugin
}

func newWorld(t *testing.T, name string, changes ...testkit.With[*storagev1.StorageClass]) *world {
	t.Helper()
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	t.Cleanup(cancel)
	name = fmt.Sprintf("%s-%d", name, worlds.Add(1))
	w := &world{t: t, ctx: ctx, config: config, name: name}
	w.client = testkit.Client(t, w.config)
	w.fake, w.plugin = plugintest.NewFake("tarn.dev/"+name, name)
	w.must(w.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	w.must(w.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	class := testkit.Class(w.plugin.Name, changes...)
	class.Name, class.Parameters = name, nil
	w.must(w.client.Create(ctx, class))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// claim creates a claim that the binder has assigned to the plugin.
func (w *world) claim(name string, changes ...testkit.With[*corev1.PersistentVolumeClaim]) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := testkit.Claim(w.name, name, "", w.plugin.Name, changes...)
	claim.Spec.StorageClassName = &w.name
	w.must(w.client.Create(w.ctx, claim))
	return claim
}

// alone returns a reconciler without a manager, which always reads live, and its Events.
func (w *world) alone() (*reconciler, *events.FakeRecorder) {
	w.t.Helper()
	recorder := events.NewFakeRecorder(10)
	return &reconciler{
		client: w.client, reader: w.client, plugins: map[string]plugin.Plugin{w.plugin.Name: w.plugin}, events: recorder, clock: clock.RealClock{},
		claims: kube.Claims{Cached: unindexed{w.client}, Live: w.client},
	}, recorder
}

// unindexed lists claims by volume from the API server, which has no such index.
type unindexed struct{ client.Reader }

func (u unindexed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	claims, ok := list.(*corev1.PersistentVolumeClaimList)
	if !ok {
		return errors.New("it has no index but that of claims")
	}
	asked := &client.ListOptions{}
	asked.ApplyOptions(opts)
	name, _ := asked.FieldSelector.RequiresExactMatch(kube.ClaimsByVolume)
	if err := u.Reader.List(ctx, claims); err != nil {
		return err
	}
	claims.Items = slices.DeleteFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return !slices.Contains(kube.VolumeNamed(&c), name) })
	return nil
}

// view is what gather would return for a claim, with the present claim and class.
func (w *world) view(claim *corev1.PersistentVolumeClaim) *View {
	w.t.Helper()
	v := &View{VolumeName: volumeName(claim.UID), Claim: claim.DeepCopy(), Plugin: &w.plugin, Class: &storagev1.StorageClass{}, Node: &corev1.Node{}}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: w.name}, v.Class))
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: w.name}, v.Node))
	return v
}

// run starts the controller on a configuration and returns a function that stops it.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.t.Helper()
	return testkit.Run(w.ctx, w.t, restConfig, func(mgr ctrl.Manager) error {
		return Register(mgr, Options{Plugins: []plugin.Plugin{w.plugin}, MaxConcurrent: 4})
	}, func(o *ctrl.Options) {
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&corev1.PersistentVolumeClaim{}: {Namespaces: map[string]cache.Config{w.name: {}}},
		}
	})
}

// bind does the work of Kubernetes' controllers that the tests need, until the test ends. It
// binds and releases volumes, and removes protection finalizers.
func (w *world) bind() {
	w.t.Helper()
	mirror := testkit.MirrorOf(w.t, w.config)
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		mirror.Until(ctx, func() bool { w.bindOnce(ctx); return false })
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// bindOnce is one round of bind. It retries failures in the next round. Like both binders, it
// keeps the phase Failed of a volume whose claim is gone.
func (w *world) bindOnce(ctx context.Context) {
	volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
	if w.client.List(ctx, volumes) != nil || w.client.List(ctx, claims, client.InNamespace(w.name)) != nil {
		return
	}
	ours := map[string]*corev1.PersistentVolumeClaim{}
	for i := range claims.Items {
		if volume.ProvisionerOf(&claims.Items[i]) == w.plugin.Name {
			ours[string(claims.Items[i].UID)] = &claims.Items[i]
			w.unprotect(ctx, &claims.Items[i])
		}
	}
	for i := range volumes.Items {
		vol := &volumes.Items[i]
		if vol.Annotations[volume.AnnProvisionedBy] != w.plugin.Name {
			continue
		}
		w.unprotect(ctx, vol)
		want := corev1.VolumeReleased
		if claim := ours[string(vol.Spec.ClaimRef.UID)]; claim != nil {
			want = corev1.VolumeBound
			if claim.Spec.VolumeName == "" {
				claim.Spec.VolumeName = vol.Name
				_ = w.client.Update(ctx, claim)
			}
			if claim.Status.Phase != corev1.ClaimBound {
				claim.Status.Phase = corev1.ClaimBound
				_ = w.client.Status().Update(ctx, claim)
			}
		}
		if failed := want == corev1.VolumeReleased && vol.Status.Phase == corev1.VolumeFailed; vol.Status.Phase != want && !failed {
			vol.Status.Phase = want
			_ = w.client.Status().Update(ctx, vol)
		}
	}
}

func (w *world) unprotect(ctx context.Context, o client.Object) {
	base, ok := o.DeepCopyObject().(client.Object)
	if !ok || o.GetDeletionTimestamp() == nil {
		return
	}
	o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return strings.HasPrefix(f, "kubernetes.io/") }))
	if len(o.GetFinalizers()) != len(base.GetFinalizers()) {
		_ = w.client.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	}
}

// eventually waits until check returns nil.
func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	var err error
	if !testkit.MirrorOf(w.t, w.config).Until(w.ctx, func() bool { err = check(); return err == nil }) {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// now reads the present state of an object.
func (w *world) now(o client.Object) error {
	return w.client.Get(w.ctx, client.ObjectKeyFromObject(o), o)
}

func (w *world) gone(o client.Object) func() error {
	o = o.DeepCopyObject().(client.Object)
	return func() error {
		err := w.now(o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New(o.GetName()+" is there, with finalizers "+strings.Join(o.GetFinalizers(), " ")))
	}
}
