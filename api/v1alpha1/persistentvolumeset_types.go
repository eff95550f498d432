package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels and annotations by which a pool knows what is its own.
const (
	// LabelPool carries the name of the PersistentVolumeSet a filler claim, filler
	// pod or filler class is for, LabelPoolUID its uid.
	LabelPool    = "tarn.dev/pool"
	LabelPoolUID = "tarn.dev/pool-uid"
	// StepFilling is the value of LabelStep on a filler pod, which picks the node of a
	// spare volume.
	StepFilling Step = "filling"

	// AnnotationPoolUID is on each PersistentVolume that a pool has had made: the uid
	// of the PersistentVolumeSet.
	AnnotationPoolUID = "tarn.dev/pool-uid"
	// AnnotationPoolTemplate is on filler claims and the volumes made for them: a hash
	// of the template they follow.
	AnnotationPoolTemplate = "tarn.dev/pool-template"
	// AnnotationPoolFilling is on a volume on its way from its filler claim into the
	// pool: the uid of that claim. Its reclaim policy is Retain meanwhile;
	// AnnotationPoolPolicy has the one it is to get.
	AnnotationPoolFilling = "tarn.dev/pool-filling"
	AnnotationPoolPolicy  = "tarn.dev/pool-reclaim-policy"
	// AnnotationPoolUnused is on a spare volume: status.lastPhaseTransitionTime as it
	// was when the volume joined the pool. While that is the same, nobody has ever
	// drawn the volume, so there is nothing on it to be kept. On a volume that has just
	// left its filler claim it is when that was.
	AnnotationPoolUnused = "tarn.dev/pool-unused-since"
	// AnnotationPoolTopology is on filler claims the value of the template's topologyKey
	// that the volume should get, and on volumes the one they have got.
	AnnotationPoolTopology = "tarn.dev/pool-topology"

	// AnnotationOrphan on a PersistentVolumeSet, with the value "true", lets its spare
	// volumes stay when it is deleted.
	AnnotationOrphan = "tarn.dev/orphan-spares"
	// FinalizerPool keeps a PersistentVolumeSet until its spares are on their way out
	// and nothing is half-way.
	FinalizerPool = "tarn.dev/pool"
)

// ConditionReady is the condition of a PersistentVolumeSet that is True while there
// are minimumReplicas spare volumes; else its reason and message say why not.
const ConditionReady = "Ready"

// PersistentVolumeSetTemplateMetadata is what spare volumes carry.
type PersistentVolumeSetTemplateMetadata struct {
	// labels of the volumes; they must satisfy the selector.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations of the volumes.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PersistentVolumeSetTemplate says what a spare volume is like.
//
// +kubebuilder:validation:XValidation:rule="has(self.spec.capacity) && 'storage' in self.spec.capacity && quantity(string(self.spec.capacity['storage'])).isGreaterThan(quantity('0'))",message="spec.capacity.storage must say how large the volumes are, for example 10Gi"
// +kubebuilder:validation:XValidation:rule="has(self.spec.accessModes) && self.spec.accessModes.size() > 0",message="spec.accessModes must name at least one access mode, for example ReadWriteOnce"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.accessModes) || !('ReadWriteOncePod' in self.spec.accessModes) || self.spec.accessModes.size() == 1",message="spec.accessModes: ReadWriteOncePod cannot be combined with another access mode"
// +kubebuilder:validation:XValidation:rule="has(self.spec.storageClassName) && self.spec.storageClassName.size() > 0",message="spec.storageClassName must name the class whose provisioner makes the volumes and whose claims draw them"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.claimRef)",message="spec.claimRef is set when a claim draws a volume; remove it"
// +kubebuilder:validation:XValidation:rule="!(has(self.spec.csi) || has(self.spec.hostPath) || has(self.spec.local) || has(self.spec.nfs) || has(self.spec.iscsi) || has(self.spec.fc) || has(self.spec.flexVolume) || has(self.spec.rbd) || has(self.spec.cephfs) || has(self.spec.glusterfs) || has(self.spec.cinder) || has(self.spec.awsElasticBlockStore) || has(self.spec.gcePersistentDisk) || has(self.spec.azureDisk) || has(self.spec.azureFile) || has(self.spec.vsphereVolume) || has(self.spec.quobyte) || has(self.spec.portworxVolume) || has(self.spec.scaleIO) || has(self.spec.storageos) || has(self.spec.photonPersistentDisk) || has(self.spec.flocker))",message="spec names a volume source, which the provisioner of spec.storageClassName is to choose for each volume; remove it"
type PersistentVolumeSetTemplate struct {
	// metadata of the volumes.
	// +optional
	Metadata PersistentVolumeSetTemplateMetadata `json:"metadata,omitempty"`
	// spec of the volumes. The provisioner of storageClassName creates them with
	// capacity, accessModes, volumeMode and volumeAttributesClassName. If
	// persistentVolumeReclaimPolicy or mountOptions are set, they replace those of the
	// class. If the class waits for the first consumer, nodeAffinity says on which nodes
	// volumes may be created. A volume source or a claimRef is rejected.
	Spec corev1.PersistentVolumeSpec `json:"spec"`
	// topologyKey is a label of nodes over whose values the spare volumes are spread
	// evenly, where the class waits for the first consumer.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	TopologyKey string `json:"topologyKey,omitempty"`
	// tolerations are those of the pods that will use the volumes. If the class waits for
	// the first consumer, spare volumes are also created on nodes with these taints.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// PersistentVolumeSetSpec says how many spare volumes there should be, and which.
//
// +kubebuilder:validation:XValidation:rule="self.minimumReplicas <= self.maximumReplicas",message="minimumReplicas must not be greater than maximumReplicas"
// +kubebuilder:validation:XValidation:rule="self.selector.all(k, has(self.template.metadata) && has(self.template.metadata.labels) && k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector[k])",message="template.metadata.labels must have every label of selector, else the set would not know its own volumes"
type PersistentVolumeSetSpec struct {
	// minimumReplicas is how many volumes should be Available.
	// +kubebuilder:validation:Minimum=0
	MinimumReplicas int32 `json:"minimumReplicas"`
	// maximumReplicas is how many volumes there may be, those in use included.
	// +kubebuilder:validation:Minimum=0
	MaximumReplicas int32 `json:"maximumReplicas"`
	// selector is the labels of the volumes that count, also if the set did not create
	// them. It cannot be changed.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="selector cannot be changed: volumes would be lost from sight; make another set"
	Selector map[string]string `json:"selector"`
	// scaler names a PersistentVolumeSetScaler, which must name this set; its replicas
	// are written into minimumReplicas then.
	// +optional
	Scaler *PersistentVolumeSetScalerReference `json:"scaler,omitempty"`
	// template is what new volumes are like.
	Template PersistentVolumeSetTemplate `json:"template"`
}

// PersistentVolumeSetScalerReference names a PersistentVolumeSetScaler.
type PersistentVolumeSetScalerReference struct {
	// namespace of the scaler.
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// name of the scaler.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// PersistentVolumeSetStatus counts the volumes of the set. Each volume that the selector selects is
// counted once.
type PersistentVolumeSetStatus struct {
	// replicas is how many volumes there are, including those being created.
	// +optional
	Replicas int32 `json:"replicas"`
	// boundReplicas is how many volumes have a claim or are reserved for one, without those
	// that are being scrubbed.
	// +optional
	BoundReplicas int32 `json:"boundReplicas"`
	// unboundReplicas is how many volumes are Available.
	// +optional
	UnboundReplicas int32 `json:"unboundReplicas"`
	// creatingReplicas is how many volumes are being created.
	// +optional
	CreatingReplicas int32 `json:"creatingReplicas"`
	// recyclingReplicas is how many volumes are released or being scrubbed, and will be
	// Available again.
	// +optional
	RecyclingReplicas int32 `json:"recyclingReplicas"`
	// releasedReplicas is how many volumes hold the data of a deleted claim and are kept,
	// by their policy or in the trash.
	// +optional
	ReleasedReplicas int32 `json:"releasedReplicas"`
	// failedReplicas is how many volumes could not be reclaimed.
	// +optional
	FailedReplicas int32 `json:"failedReplicas"`
	// outdatedReplicas is how many of the Available volumes have an older template.
	// +optional
	OutdatedReplicas int32 `json:"outdatedReplicas"`
	// selector is spec.selector as text, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
	// observedGeneration is the generation of the spec these counts are compared with.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PersistentVolumeSet keeps a pool of spare volumes, from which claims of its class
// are served at once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.minimumReplicas,statuspath=.status.unboundReplicas,selectorpath=.status.selector
// +kubebuilder:resource:path=persistentvolumesets,singular=persistentvolumeset,shortName=pvset,scope=Cluster
// +kubebuilder:metadata:labels="tarn.dev/deletion-protection=true"
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.spec.template.spec.storageClassName`
// +kubebuilder:printcolumn:name="Minimum",type=integer,JSONPath=`.spec.minimumReplicas`
// +kubebuilder:printcolumn:name="Unbound",type=integer,JSONPath=`.status.unboundReplicas`
// +kubebuilder:printcolumn:name="Creating",type=integer,JSONPath=`.status.creatingReplicas`
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.status.boundReplicas`
// +kubebuilder:printcolumn:name="Recycling",type=integer,JSONPath=`.status.recyclingReplicas`
// +kubebuilder:printcolumn:name="Released",type=integer,JSONPath=`.status.releasedReplicas`,priority=1
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failedReplicas`,priority=1
// +kubebuilder:printcolumn:name="Maximum",type=integer,JSONPath=`.spec.maximumReplicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="metadata.name must have at most 52 characters: it is part of other names"
type PersistentVolumeSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PersistentVolumeSetSpec `json:"spec"`
	// +optional
	Status PersistentVolumeSetStatus `json:"status,omitempty"`
}

// PersistentVolumeSetList is a list of PersistentVolumeSet.
//
// +kubebuilder:object:root=true
type PersistentVolumeSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PersistentVolumeSet `json:"items"`
}
