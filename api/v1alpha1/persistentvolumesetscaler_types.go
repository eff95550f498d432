package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionFollowed of a PersistentVolumeSetScaler is True while its set follows it.
const ConditionFollowed = "Followed"

// PersistentVolumeSetScalerSpec is what an autoscaler writes.
type PersistentVolumeSetScalerSpec struct {
	// persistentVolumeSet names the set. The set follows this scaler only if its
	// spec.scaler names it. So users scale a set only if an administrator allows it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="persistentVolumeSet cannot be changed; make another scaler"
	PersistentVolumeSet string `json:"persistentVolumeSet"`
	// replicas is how many volumes should be Available: the set's minimumReplicas, up to
	// its maximumReplicas.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=1
	Replicas int32 `json:"replicas"`
}

// PersistentVolumeSetScalerStatus is the state of the set that the scaler names.
type PersistentVolumeSetScalerStatus struct {
	// replicas is how many volumes of the set are Available.
	// +optional
	Replicas int32 `json:"replicas"`
	// selector is the set's selector as text. The scale subresource needs it.
	// +optional
	Selector string `json:"selector,omitempty"`
	// conditions are Followed.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PersistentVolumeSetScaler lets a HorizontalPodAutoscaler scale a PersistentVolumeSet.
// An autoscaler can only scale an object of its own namespace, and a set has none.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=persistentvolumesetscalers,singular=persistentvolumesetscaler,shortName=pvscaler,scope=Namespaced
// +kubebuilder:metadata:labels="tarn.dev/deletion-protection=true"
// +kubebuilder:printcolumn:name="Set",type=string,JSONPath=`.spec.persistentVolumeSet`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Unbound",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Followed",type=string,JSONPath=`.status.conditions[?(@.type=="Followed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Followed")].message`,priority=1
type PersistentVolumeSetScaler struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PersistentVolumeSetScalerSpec `json:"spec"`
	// +optional
	Status PersistentVolumeSetScalerStatus `json:"status,omitempty"`
}

// PersistentVolumeSetScalerList is a list of PersistentVolumeSetScaler.
//
// +kubebuilder:object:root=true
type PersistentVolumeSetScalerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PersistentVolumeSetScaler `json:"items"`
}
