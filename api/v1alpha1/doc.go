// Package v1alpha1 holds Tarn's own custom resources, group tarn.dev, and the
// labels, annotations and finalizers by which its parts know each other's objects.
//
// It knows nothing of controllers or clients.
//
// +kubebuilder:object:generate=true
// +groupName=tarn.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of Tarn's own resources.
const Group = "tarn.dev"

// GroupVersion is the group and version of Tarn's own resources.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// AddToScheme registers the kinds of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&PavVolume{}, &PavVolumeList{},
		&PavStage{}, &PavStageList{},
		&PersistentVolumeSet{}, &PersistentVolumeSetList{},
		&PersistentVolumeSetScaler{}, &PersistentVolumeSetScalerList{},
		&App{}, &AppList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
