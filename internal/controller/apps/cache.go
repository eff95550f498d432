package apps

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

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
		for _, c := range o.Status.Conditions {
			if c.Type == tarnv1.ConditionDeployed {
				app.Status.Conditions = []metav1.Condition{{Type: c.Type, Status: c.Status}}
			}
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
