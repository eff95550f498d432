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
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
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
	testkit.World
	name   string
	fake   *plugintest.Fake
	plugin plugin.Plugin
}

func newWorld(t *testing.T, name string, changes ...testkit.With[*storagev1.StorageClass]) *world {
	t.Helper()
	name = fmt.Sprintf("%s-%d", name, worlds.Add(1))
	w := &world{World: testkit.NewWorld(t, testkit.APIServer(t)), name: name}
	w.fake, w.plugin = plugintest.NewFake("tarn.dev/"+name, name)
	class := testkit.Class(w.plugin.Name, changes...)
	class.Name, class.Parameters = name, nil
	w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, class)
	return w
}

// claim creates a claim that the binder has assigned to the plugin.
func (w *world) claim(name string, changes ...testkit.With[*corev1.PersistentVolumeClaim]) *corev1.PersistentVolumeClaim {
	w.T.Helper()
	claim := testkit.Claim(w.name, name, "", w.plugin.Name, changes...)
	claim.Spec.StorageClassName = &w.name
	w.Create(claim)
	return claim
}

// alone returns a reconciler without a manager, which always reads live, and its Events.
func (w *world) alone() (*reconciler, *events.FakeRecorder) {
	w.T.Helper()
	recorder := events.NewFakeRecorder(10)
	return &reconciler{
		client: w.Client, reader: w.Client, plugins: map[string]plugin.Plugin{w.plugin.Name: w.plugin}, events: recorder, clock: clock.RealClock{},
		claims: kube.Claims{Cached: unindexed{w.Client}, Live: w.Client},
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
	w.T.Helper()
	v := &View{VolumeName: volumeName(claim.UID), Claim: claim.DeepCopy(), Plugin: &w.plugin, Class: &storagev1.StorageClass{}, Node: &corev1.Node{}}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Name: w.name}, v.Class))
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Name: w.name}, v.Node))
	return v
}

// run starts the controller on a configuration and returns a function that stops it.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.T.Helper()
	return w.Run(restConfig, func(mgr ctrl.Manager) error {
		return Register(mgr, Options{Plugins: []plugin.Plugin{w.plugin}, MaxConcurrent: 4})
	}, func(o *ctrl.Options) {
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&corev1.PersistentVolumeClaim{}: {Namespaces: map[string]cache.Config{w.name: {}}},
		}
	})
}

// bind does the work of Kubernetes' controllers that the tests need, until the test ends. It
// binds and releases volumes, and removes protection finalizers.
func (w *world) bind() { w.Play(w.bindOnce) }

// bindOnce is one round of bind.
func (w *world) bindOnce() error {
	volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
	if err := errors.Join(w.Client.List(w.Ctx, volumes), w.Client.List(w.Ctx, claims, client.InNamespace(w.name))); err != nil {
		return err
	}
	for i := range claims.Items {
		if volume.ProvisionerOf(&claims.Items[i]) == w.plugin.Name {
			w.Release(&claims.Items[i], "kubernetes.io/")
		}
	}
	for i := range volumes.Items {
		vol := &volumes.Items[i]
		if vol.Annotations[volume.AnnProvisionedBy] != w.plugin.Name {
			continue
		}
		w.Release(vol, "kubernetes.io/")
		for n := range claims.Items {
			if claim := &claims.Items[n]; vol.Spec.ClaimRef != nil && claim.UID == vol.Spec.ClaimRef.UID {
				w.Bind(claim, vol.Name)
			}
		}
		w.SetVolumePhase(vol, claims.Items)
	}
	return nil
}

// eventually waits until check returns nil.
func (w *world) eventually(what string, check func() error) {
	w.T.Helper()
	w.Eventually(what, func() string {
		if err := check(); err != nil {
			return err.Error()
		}
		return ""
	})
}

// saying waits for an Event about an object.
func (w *world) saying(about client.Object, reason, part string) {
	w.T.Helper()
	w.eventually("an Event "+reason+" about "+about.GetName(), func() error {
		told := &eventsv1.EventList{}
		if err := w.Client.List(w.Ctx, told); err != nil {
			return err
		}
		if !slices.ContainsFunc(told.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == about.GetUID() && e.Reason == reason && strings.Contains(e.Note, part)
		}) {
			return fmt.Errorf("none says %q", part)
		}
		return nil
	})
}

// now reads the present state of an object.
func (w *world) now(o client.Object) error {
	return w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o)
}

func (w *world) gone(o client.Object) func() error {
	o = o.DeepCopyObject().(client.Object)
	return func() error {
		if left := w.Gone(o); left != "" {
			return errors.New(left)
		}
		return nil
	}
}
