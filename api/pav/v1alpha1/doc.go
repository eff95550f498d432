// Package v1alpha1 holds the custom resource a provisioner is written as:
// PavProvisioner, in the group and version of the original Pods-as-Volumes, so
// that every manifest written for it is accepted here unchanged.
//
// It knows nothing of controllers, clients or templates: a templated section is
// carried as raw JSON and given its meaning by internal/steppod.
//
// +kubebuilder:object:generate=true
// +groupName=pav.albertofaria.github.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of PavProvisioner.
const Group = "pav.albertofaria.github.io"

// GroupVersion is the group and version of PavProvisioner.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// AddToScheme registers the kinds of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &PavProvisioner{}, &PavProvisionerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
