package apps

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/testkit"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const (
	rwo = corev1.ReadWriteOnce
	rwx = corev1.ReadWriteMany
)

// appOf is an App shop of one pod, seen before, with volumes.
func appOf(volumes ...tarnv1.AppVolume) *tarnv1.App {
	return &tarnv1.App{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shop", UID: "shop-uid", Generation: 3, Finalizers: []string{tarnv1.FinalizerApp}},
		Spec:       tarnv1.AppSpec{Image: "shop:1", Replicas: ptr.To[int32](1), Volumes: volumes},
	}
}

func volumeOf(name string, sizeGi int64, changes ...testkit.With[*tarnv1.AppVolume]) tarnv1.AppVolume {
	volume := tarnv1.AppVolume{Name: name, MountPath: "/" + name, SizeGi: sizeGi, AccessMode: rwo}
	for _, change := range changes {
		change(&volume)
	}
	return volume
}

func shared(volume *tarnv1.AppVolume)     { volume.AccessMode = rwx }
func preserving(volume *tarnv1.AppVolume) { volume.PreserveOnDelete = true }

// viewOf is the view of an App before anything was created for it.
func viewOf(app *tarnv1.App, changes ...testkit.With[*View]) *View {
	v := &View{App: app, Claims: map[string]*corev1.PersistentVolumeClaim{}, Classes: map[string]*storagev1.StorageClass{}, Defaults: appspec.DefaultClasses}
	for _, class := range appspec.DefaultClasses {
		v.Classes[class] = testkit.Class(class, func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(true) })
	}
	for _, change := range changes {
		change(v)
	}
	return v
}

// broughtBack is the claim of a volume of an earlier App, as tarn undelete restores it.
func broughtBack(volume string) *corev1.PersistentVolumeClaim {
	claim := newClaim(viewOf(appOf()), ptr.To(volumeOf(volume, 1)))
	forgets(claim)
	return claim
}

// forgets removes from a claim the App that it was made for.
func forgets(claim *corev1.PersistentVolumeClaim) {
	delete(claim.Annotations, tarnv1.AnnotationMadeFor)
}

// deployed is the view of a complete App, with bound claims and ready pods.
func deployed(app *tarnv1.App, changes ...testkit.With[*View]) *View {
	v := viewOf(app)
	for i := range app.Spec.Volumes {
		volume := &app.Spec.Volumes[i]
		bound(newClaim(v, volume))(v)
	}
	settle(v)
	for _, change := range changes {
		change(v)
	}
	return v
}

// settle makes the view's topology and Deployment what its App wants.
func settle(v *View) {
	v.Deployed = topologyOf(v)
	v.Config = newConfig(v.App, v.Deployed.text())
	v.Deployment = newDeployment(v)
	v.Deployment.Generation = 1
	n := *v.Deployment.Spec.Replicas
	v.Deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
}

// bound adds a claim that has its storage.
func bound(claim *corev1.PersistentVolumeClaim, changes ...testkit.With[*corev1.PersistentVolumeClaim]) testkit.With[*View] {
	claim.UID = types.UID(claim.Name + "-uid")
	claim.Status.Phase = corev1.ClaimBound
	claim.Status.Capacity = claim.Spec.Resources.Requests.DeepCopy()
	for _, change := range changes {
		change(claim)
	}
	return func(v *View) { v.Claims[claim.Name] = claim }
}

// asks changes the spec after it was deployed.
func asks(change func(*tarnv1.AppSpec)) testkit.With[*View] {
	return func(v *View) {
		v.App = v.App.DeepCopy()
		change(&v.App.Spec)
		v.App.Generation++
	}
}

// onClaim changes the claim of a volume.
func onClaim(volume string, change func(*corev1.PersistentVolumeClaim)) testkit.With[*View] {
	return func(v *View) { change(v.Claims[appspec.ClaimName(v.App.Name, volume)]) }
}

func dying(v *View) { v.App.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }

func stopped(v *View) { v.Deployment = nil }

func terminating(claim *corev1.PersistentVolumeClaim) {
	claim.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
}
