package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VolumePhase is where a PavVolume is in its life. Controller pavvolume
// writes the status. While the volume is Created, expand writes expansion and capacity.
//
//	Pending -> Validating -> Creating -> Created -> Deleting -> (gone)
//	   ^           |            |           |
//	   |<----------+            v           |  claim gone before the
//	   +<------------------- Undoing <------+  volume was handed over
//	                            |           |
//	                            +-> Disputed <  another volume has its handle
//
// +kubebuilder:validation:Enum=Pending;Validating;Creating;Created;Undoing;Deleting;Disputed
type VolumePhase string

// The phases of a PavVolume.
const (
	// VolumePending: nothing has been started, or the last attempt has been undone
	// and the next one is due at nextAttemptTime.
	VolumePending VolumePhase = "Pending"
	// VolumeValidating: the validation pod may exist.
	VolumeValidating VolumePhase = "Validating"
	// VolumeCreating: the creation pod may exist, and so may anything it made.
	VolumeCreating VolumePhase = "Creating"
	// VolumeCreated: handle and capacity are known.
	VolumeCreated VolumePhase = "Created"
	// VolumeUndoing: a creation failed or lost its claim; the deletion pod removes
	// what it may have left.
	VolumeUndoing VolumePhase = "Undoing"
	// VolumeDeleting: the claim is gone and the policy is Delete.
	VolumeDeleting VolumePhase = "Deleting"
	// VolumeDisputed: the creation gave a handle that another volume of the
	// provisioner has. Nothing is made of it and no deletion pod runs, as what that
	// would delete is the other's. It ends with its claim, or when somebody deletes
	// the PavVolume, upon which a claim that is still there is served anew.
	VolumeDisputed VolumePhase = "Disputed"
)

// ConditionProvisioned is the condition of a PavVolume that is True once the
// PersistentVolume exists; else its reason and message say why not.
const ConditionProvisioned = "Provisioned"

// ConditionDeletable is the condition of a PavVolume in Undoing or Deleting: False
// with the reason while something stands in the way.
const ConditionDeletable = "Deletable"

// ProvisionerReference names one PavProvisioner, and which one of that name.
type ProvisionerReference struct {
	// name of the PavProvisioner.
	Name string `json:"name"`
	// uid of the PavProvisioner.
	UID types.UID `json:"uid"`
}

// ClaimReference names one PersistentVolumeClaim, and which one of that name.
type ClaimReference struct {
	// namespace of the claim.
	Namespace string `json:"namespace"`
	// name of the claim.
	Name string `json:"name"`
	// uid of the claim.
	UID types.UID `json:"uid"`
}

// PavVolumeSource is what a volume is made from, as it was when the record was made. Its storage
// is not destroyed while a volume is being made from it.
type PavVolumeSource struct {
	// kind is PersistentVolumeClaim.
	Kind string `json:"kind"`
	// namespace of the source, which is that of the claim.
	Namespace string `json:"namespace"`
	// name of the source.
	Name string `json:"name"`
	// uid of the source.
	UID types.UID `json:"uid"`
	// storage is the name of the PersistentVolume whose storage is copied.
	Storage string `json:"storage"`
	// handle is the source's name for the provisioner.
	Handle string `json:"handle"`
	// capacity of the source in bytes.
	Capacity int64 `json:"capacity"`
	// volumeMode of the source.
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode"`
	// nodeName is the node the source lies on, where only one can use it.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// parameters are those of the StorageClass of the source.
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`
}

// PavVolumeSpec says for whom and by what a volume is made. It is written once,
// before the first side effect, and is all a deletion needs when claim and class
// are gone.
type PavVolumeSpec struct {
	// provisioner makes and deletes the volume.
	Provisioner ProvisionerReference `json:"provisioner"`
	// claim is the claim the volume is made for.
	Claim ClaimReference `json:"claim"`
	// volumeMode is the claim's, Filesystem where it says nothing.
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode"`
	// accessModes are the claim's, in its order.
	// +listType=atomic
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes"`
	// requestedMinCapacity is the claim's storage request in bytes, or the capacity of the
	// source where that is larger.
	RequestedMinCapacity int64 `json:"requestedMinCapacity"`
	// requestedMaxCapacity is the claim's storage limit in bytes; absent where it
	// has none.
	// +optional
	RequestedMaxCapacity *int64 `json:"requestedMaxCapacity,omitempty"`
	// waitsForNode says that the class waits for the first consumer, whose node is
	// then in the claim's annotation.
	// +optional
	WaitsForNode bool `json:"waitsForNode,omitempty"`
	// source is what the volume is made from; absent for an empty volume.
	// +optional
	Source *PavVolumeSource `json:"source,omitempty"`
	// claimSnapshot is the claim as it stood when the record was made.
	ClaimSnapshot apiextensionsv1.JSON `json:"claimSnapshot"`
	// classSnapshot is the StorageClass as it stood when the record was made.
	ClassSnapshot apiextensionsv1.JSON `json:"classSnapshot"`
}

// PavVolumeError is the last thing that went wrong.
type PavVolumeError struct {
	// step that failed.
	Step Step `json:"step"`
	// reason in one CamelCase word, the same as in Events.
	Reason string `json:"reason"`
	// message for people, with the text of /pav/error where there was one.
	Message string `json:"message"`
	// time of the failure.
	Time metav1.Time `json:"time"`
	// provisionerGeneration is the generation of the provisioner that failed; a
	// newer one is tried at once.
	// +optional
	ProvisionerGeneration int64 `json:"provisionerGeneration,omitempty"`
}

// PavVolumeExpansion is the journal of what makes the volume larger: an attempt is
// written here before its pod is made.
//
//	idle (no target) -> running (target) -> idle
//	                      |   ^
//	                      v   |
//	                    waiting (target and nextAttemptTime)
type PavVolumeExpansion struct {
	// targetCapacity is the size in bytes that is being reached; absent while
	// nothing is.
	// +optional
	TargetCapacity int64 `json:"targetCapacity,omitempty"`
	// attempts counts the expansion pods of the record's whole life, the current one
	// included: it is part of their names.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// failures counts those that have failed in a row for this target.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// nextAttemptTime is when a failed attempt is followed by another.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
	// lastError is the last failure; it stays until an attempt succeeds.
	// +optional
	LastError *PavVolumeError `json:"lastError,omitempty"`
}

// MadeClaim names a claim that was made for a volume.
type MadeClaim struct {
	// namespace of the claim.
	Namespace string `json:"namespace"`
	// name of the claim.
	Name string `json:"name"`
}

// PavVolumeStatus is how far the volume has come.
type PavVolumeStatus struct {
	// phase of the volume.
	// +optional
	Phase VolumePhase `json:"phase,omitempty"`
	// handle is the volume's name for its provisioner. From Creating on it is the one that
	// spec.volumeCreation gives, from Created on the one that the volume has. Before
	// Creating it is one that another volume still has, and that this one waits for.
	// +optional
	Handle string `json:"handle,omitempty"`
	// capacity is the volume's size in bytes; set in Created, and larger after each
	// expansion.
	// +optional
	Capacity int64 `json:"capacity,omitempty"`
	// expansion is how far the volume's growing has come; absent where it was never
	// asked for.
	// +optional
	Expansion *PavVolumeExpansion `json:"expansion,omitempty"`
	// claims are the claims that spec.claims of the provisioner has Tarn make for the volume.
	// They are written here before they are created, and until they are gone.
	// +listType=atomic
	// +optional
	Claims []MadeClaim `json:"claims,omitempty"`
	// nodeName is the node the volume is made on, and tied to, where the provisioner's
	// topology is Node. Where it is Claims, it is the node of the creation alone.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// attempts is how often creation was begun, the current attempt included.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// deletionAttempts counts the deletion pods of the record's whole life, the
	// current one included, those of undoings too: it is part of their names.
	// +optional
	DeletionAttempts int32 `json:"deletionAttempts,omitempty"`
	// deletionStarted says that a deletion pod was sent to the API server since the
	// phase became Deleting: the storage may be damaged even if it does not end well.
	// +optional
	DeletionStarted bool `json:"deletionStarted,omitempty"`
	// podNamespace is where the pod of the current step is; its name is derived from
	// the claim's uid, the step and the attempt.
	// +optional
	PodNamespace string `json:"podNamespace,omitempty"`
	// nextDeletionTime is when a failed deletion pod is followed by another.
	// +optional
	NextDeletionTime *metav1.Time `json:"nextDeletionTime,omitempty"`
	// nextAttemptTime is when a failed creation is tried again; absent until what it may
	// have left is undone.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
	// lastError is the last failure; it stays until the step succeeds.
	// +optional
	LastError *PavVolumeError `json:"lastError,omitempty"`
	// conditions are Provisioned and Deletable.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PavVolume is the record of one dynamically created volume, made before any side
// effect: nothing leaks because nothing happens that is not written here first. Its
// name is the name of the PersistentVolume, pvc-<uid of the claim>.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pavvolumes,singular=pavvolume,shortName=pavvol,scope=Cluster
// +kubebuilder:metadata:labels="tarn.dev/deletion-protection=true"
// +kubebuilder:selectablefield:JSONPath=`.status.handle`
// +kubebuilder:selectablefield:JSONPath=`.spec.source.storage`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Provisioner",type=string,JSONPath=`.spec.provisioner.name`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.claim.namespace`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.claim.name`
// +kubebuilder:printcolumn:name="Attempts",type=integer,JSONPath=`.status.attempts`
// +kubebuilder:printcolumn:name="Handle",type=string,JSONPath=`.status.handle`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.lastError.message`
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="spec is written once and cannot be changed"
type PavVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PavVolumeSpec `json:"spec"`
	// +optional
	Status PavVolumeStatus `json:"status,omitempty"`
}

// PavVolumeList is a list of PavVolume.
//
// +kubebuilder:object:root=true
type PavVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PavVolume `json:"items"`
}
