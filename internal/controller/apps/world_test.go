//go:build integration

package apps

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// world is one API server with a namespace. It has stand-ins for the binder, the expansion of
// volumes, the Deployment controller and the garbage collector.
type world struct {
	testkit.World
	namespace string
	// crashing means that no pod stays ready.
	crashing atomic.Bool
}

// worlds counts the worlds, for the names of their namespaces.
var worlds atomic.Int32

func newWorld(t *testing.T, config *rest.Config, name string) *world {
	t.Helper()
	namespace := fmt.Sprintf("%s-%d", name, worlds.Add(1))
	w := &world{World: testkit.NewWorld(t, config), namespace: namespace}
	w.Must(w.Client.Create(w.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	for _, class := range appspec.DefaultClasses {
		w.Must(client.IgnoreAlreadyExists(w.Client.Create(w.Ctx, testkit.Class(class, func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(true) }))))
	}
	w.Play(w.round)
	return w
}

func (w *world) round() error {
	claims, workloads := &corev1.PersistentVolumeClaimList{}, &appsv1.DeploymentList{}
	if err := errors.Join(w.Mirror.List(w.Ctx, claims, client.InNamespace(w.namespace)), w.Mirror.List(w.Ctx, workloads, client.InNamespace(w.namespace))); err != nil {
		return err
	}
	for i := range workloads.Items {
		w.runPods(&workloads.Items[i])
	}
	for i := range claims.Items {
		used := slices.ContainsFunc(workloads.Items, func(d appsv1.Deployment) bool {
			return d.Status.Replicas > 0 && slices.ContainsFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim.ClaimName == claims.Items[i].Name })
		})
		w.serve(&claims.Items[i], used)
	}
	return nil
}

// serve gives a claim what it requests, or removes its finalizers when no pod uses it.
func (w *world) serve(claim *corev1.PersistentVolumeClaim, used bool) {
	switch has, wants := claim.Status.Capacity.Storage(), claim.Spec.Resources.Requests.Storage(); {
	case claim.DeletionTimestamp != nil && !used:
		base := claim.DeepCopy()
		claim.Finalizers = nil
		_ = w.Client.Patch(w.Ctx, claim, client.MergeFrom(base))
	case claim.DeletionTimestamp == nil && (claim.Status.Phase != corev1.ClaimBound || has.Cmp(*wants) < 0):
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
		_ = w.Client.Status().Update(w.Ctx, claim)
	}
}

// runPods makes a Deployment's pods ready at once, and removes them when it is deleted.
func (w *world) runPods(d *appsv1.Deployment) {
	if d.DeletionTimestamp != nil {
		base := d.DeepCopy()
		d.Finalizers = nil
		_ = w.Client.Patch(w.Ctx, d, client.MergeFrom(base))
		return
	}
	n := *d.Spec.Replicas
	is := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	if w.crashing.Load() {
		is.ReadyReplicas, is.AvailableReplicas = 0, 0
	}
	if !equality.Semantic.DeepEqual(d.Status, is) {
		d.Status = is
		_ = w.Client.Status().Update(w.Ctx, d)
	}
}

// run starts the controller, and returns a function that stops it.
func (w *world) run(restConfig *rest.Config) (stop func()) {
	w.T.Helper()
	return testkit.Run(w.Ctx, w.T, restConfig, register)
}

// runAsInACluster is run with the cache of a cluster's controller.
func (w *world) runAsInACluster() (stop func()) {
	w.T.Helper()
	held, err := Cached()
	w.Must(err)
	return testkit.Run(w.Ctx, w.T, w.Config, register, func(o *ctrl.Options) { o.Cache.ByObject = held })
}

func register(mgr ctrl.Manager) error {
	pods, err := kube.AllPods(mgr)
	if err != nil {
		return err
	}
	return Register(mgr, Options{Pods: pods, MaxConcurrent: 4})
}

// app creates an App in the world's namespace.
func (w *world) app(name string, volumes ...tarnv1.AppVolume) *tarnv1.App {
	w.T.Helper()
	app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: tarnv1.AppSpec{Image: "shop:1", Volumes: volumes}}
	w.Must(w.Client.Create(w.Ctx, app))
	return app
}

// change edits the spec of an App, and retries if another writer came first.
func (w *world) change(app *tarnv1.App, edit func(*tarnv1.AppSpec)) error {
	for {
		now := &tarnv1.App{}
		if err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), now); err != nil {
			return err
		}
		edit(&now.Spec)
		if err := w.Client.Update(w.Ctx, now); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// ready waits until an App reports that all of its newest spec exists.
func (w *world) ready(app *tarnv1.App) {
	w.T.Helper()
	w.Eventually("deploying", func() string {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
		if app.Status.ObservedGeneration == app.Generation && meta.IsStatusConditionTrue(app.Status.Conditions, tarnv1.ConditionReady) {
			return ""
		}
		return fmt.Sprintf("generation %d: %+v", app.Generation, app.Status)
	})
}

// says waits until an App gives a reason for not being deployed.
func (w *world) says(app *tarnv1.App, reason string) metav1.Condition {
	w.T.Helper()
	var found *metav1.Condition
	w.Eventually("saying "+reason, func() string {
		w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app))
		found = meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed)
		if app.Status.ObservedGeneration == app.Generation && found != nil && found.Reason == reason {
			return ""
		}
		return fmt.Sprintf("%+v", app.Status)
	})
	return *found
}

// claim reads the claim of a volume; nil if it does not exist.
func (w *world) claim(app *tarnv1.App, volume string) *corev1.PersistentVolumeClaim {
	w.T.Helper()
	claim, err := kube.Get(w.Ctx, w.Client, client.ObjectKey{Namespace: w.namespace, Name: appspec.ClaimName(app.Name, volume)}, &corev1.PersistentVolumeClaim{})
	w.Must(err)
	return claim
}

func (w *world) deployment(app *tarnv1.App) *appsv1.Deployment {
	w.T.Helper()
	d := &appsv1.Deployment{}
	w.Must(w.Client.Get(w.Ctx, client.ObjectKey{Namespace: w.namespace, Name: ownName(app)}, d))
	return d
}

// ended waits until nothing of an App is left except the named claims.
func (w *world) ended(app *tarnv1.App, kept ...string) {
	w.T.Helper()
	w.Eventually("deleting", func() string {
		claims, configs, workloads := &corev1.PersistentVolumeClaimList{}, &corev1.ConfigMapList{}, &appsv1.DeploymentList{}
		of := []client.ListOption{client.InNamespace(w.namespace), client.MatchingLabels{tarnv1.LabelApp: app.Name}}
		w.Must(errors.Join(w.Client.List(w.Ctx, claims, of...), w.Client.List(w.Ctx, configs, of...), w.Client.List(w.Ctx, workloads, of...)))
		var left []string
		for i := range claims.Items {
			left = append(left, claims.Items[i].Name)
		}
		err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(app), app)
		if !apierrors.IsNotFound(err) || len(configs.Items)+len(workloads.Items) > 0 || !slices.Equal(left, kept) {
			return fmt.Sprintf("the App (%v): %+v; %d ConfigMaps, %d Deployments and claims %q are left", err, app.Status, len(configs.Items), len(workloads.Items), left)
		}
		return ""
	})
}
