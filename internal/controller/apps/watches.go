package apps

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// asked passes changes that request something of an App. Its own status does not enqueue it.
func asked() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld, e.ObjectNew
		return old.GetGeneration() != now.GetGeneration() || old.GetDeletionTimestamp().IsZero() != now.GetDeletionTimestamp().IsZero() ||
			!slices.Equal(old.GetFinalizers(), now.GetFinalizers())
	}}
}

// allowsMore passes a class that is new or gone, or whose allowVolumeExpansion has changed.
func allowsMore() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*storagev1.StorageClass)
		now, ok2 := e.ObjectNew.(*storagev1.StorageClass)
		return ok && ok2 && ptr.Deref(old.AllowVolumeExpansion, false) != ptr.Deref(now.AllowVolumeExpansion, false)
	}}
}

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
}

// ofLabel enqueues the App that an object's label names.
func ofLabel(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[tarnv1.LabelApp]
	if name == "" {
		return nil
	}
	return []reconcile.Request{request(o.GetNamespace(), name)}
}

// ofClaim enqueues the App of a claim, and the Apps that cannot create their own claim of that
// name.
func (r *reconciler) ofClaim(ctx context.Context, o client.Object) []reconcile.Request {
	requests := ofLabel(ctx, o)
	if !strings.HasPrefix(o.GetName(), prefix) {
		return requests
	}
	return append(requests, r.apps(ctx, client.InNamespace(o.GetNamespace()), func(app *tarnv1.App) bool {
		return app.Name != o.GetLabels()[tarnv1.LabelApp] && slices.ContainsFunc(app.Spec.Volumes, func(v tarnv1.AppVolume) bool {
			return appspec.ClaimName(app.Name, v.Name) == o.GetName()
		})
	})...)
}

// ofClass enqueues all Apps. It cannot choose those that were rejected because of a class: the
// cache may show the class before it shows the status that says so, and nothing else would enqueue
// the App then. Classes rarely change.
func (r *reconciler) ofClass(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.apps(ctx, client.InNamespace(corev1.NamespaceAll), func(*tarnv1.App) bool { return true })
}

func (r *reconciler) apps(ctx context.Context, in client.InNamespace, concerned func(*tarnv1.App) bool) []reconcile.Request {
	list := &tarnv1.AppList{}
	if err := r.client.List(ctx, list, in, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing Apps", "namespace", string(in))
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if concerned(&list.Items[i]) {
			requests = append(requests, request(list.Items[i].Namespace, list.Items[i].Name))
		}
	}
	return requests
}

// Watched are the kinds that only this controller watches, and that a tenant may make very
// large. Of Deployments and ConfigMaps only the metadata is watched.
func Watched() []client.Object {
	return []client.Object{&tarnv1.App{}, metadataOf(appsv1.SchemeGroupVersion.WithKind("Deployment")), metadataOf(corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
}

// Cached configures what a manager's cache holds of those kinds: a few hundred bytes of each
// object, however large it is. The controller reads the rest of an object live, one App at a
// time.
func Cached() (map[client.Object]cache.ByObject, error) {
	ofApp, err := labels.NewRequirement(tarnv1.LabelApp, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("building the label selector for the objects of Apps: %w", err)
	}
	labelled := cache.ByObject{Label: labels.NewSelector().Add(*ofApp), Transform: trim}
	return map[client.Object]cache.ByObject{
		&tarnv1.App{}: {Transform: trim}, &appsv1.Deployment{}: labelled, &corev1.ConfigMap{}: labelled,
	}, nil
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// trim keeps of an object only what the watches use.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *metav1.PartialObjectMetadata:
		return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: trimMeta(&o.ObjectMeta)}, nil
	case *tarnv1.App:
		app := &tarnv1.App{TypeMeta: o.TypeMeta, ObjectMeta: trimMeta(&o.ObjectMeta)}
		for i := range o.Spec.Volumes {
			app.Spec.Volumes = append(app.Spec.Volumes, tarnv1.AppVolume{Name: o.Spec.Volumes[i].Name})
		}
		return app, nil
	}
	return o, nil
}

func trimMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	trimmed := metav1.ObjectMeta{
		Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion, Generation: o.Generation,
		CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
	}
	if name := o.Labels[tarnv1.LabelApp]; name != "" {
		trimmed.Labels = map[string]string{tarnv1.LabelApp: name}
	}
	if slices.Contains(o.Finalizers, tarnv1.FinalizerApp) {
		trimmed.Finalizers = []string{tarnv1.FinalizerApp}
	}
	return trimmed
}
