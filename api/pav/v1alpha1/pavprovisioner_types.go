package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProvisioningMode is a way in which a provisioner's volumes come to be.
//
// +kubebuilder:validation:Enum=Dynamic;Static
type ProvisioningMode string

const (
	// ModeDynamic allows volumes made for a claim of a StorageClass.
	ModeDynamic ProvisioningMode = "Dynamic"
	// ModeStatic allows PersistentVolumes written by an administrator.
	ModeStatic ProvisioningMode = "Static"
)

// ClaimAccess is the reach of a template's get_pvc.
//
// +kubebuilder:validation:Enum=AnyNamespace;ClaimNamespace
type ClaimAccess string

const (
	// ClaimAccessAny lets get_pvc read every claim of the cluster.
	ClaimAccessAny ClaimAccess = "AnyNamespace"
	// ClaimAccessNamespace lets get_pvc read the claims of the namespace of the
	// claim the volume is for.
	ClaimAccessNamespace ClaimAccess = "ClaimNamespace"
)

// Topology is from where a provisioner's volumes can be used.
//
// +kubebuilder:validation:Enum=Cluster;Node;Claims
type Topology string

const (
	// TopologyCluster is a volume that every node can use.
	TopologyCluster Topology = "Cluster"
	// TopologyNode is a volume that only the node it was created on can use.
	TopologyNode Topology = "Node"
	// TopologyClaims is a volume that the nodes can use which can use all of its claims.
	TopologyClaims Topology = "Claims"
)

// VolumeClaim is a claim that Tarn makes for each volume of a provisioner.
type VolumeClaim struct {
	// name is what templates call the claim: claims.NAME is the name of the
	// PersistentVolumeClaim that was made for the volume.
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9]{0,19}$`
	Name string `json:"name"`
	// template is the claim: metadata with labels and annotations, and spec with
	// accessModes, resources, storageClassName, volumeAttributesClassName and volumeMode.
	// By default it requests as much as the volume's claim does, with ReadWriteOnce, from
	// the default class.
	// +optional
	Template *apiextensionsv1.JSON `json:"template,omitempty"`
}

// NodeCapacity says where on a node the volumes take their space.
type NodeCapacity struct {
	// path is a directory of the node, absolute. What is free in its file system is what
	// a new volume may take. If it does not exist yet, its nearest parent counts. Templates
	// know the parameters of the StorageClass as params.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
	// reserve is how much must stay free there: a quantity such as 10Gi, or a percentage of
	// the size of the file system such as 2%.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Reserve string `json:"reserve,omitempty"`
}

// Condition types of a PavProvisioner.
const (
	// ConditionAccepted is True when the provisioner can be used: its shape and
	// the syntax of every template are right, and it is not being deleted. Its message
	// has the syntax errors of each string, the first of each tag and up to twenty, but for
	// those that may only follow from another.
	ConditionAccepted = "Accepted"
	// ConditionReady is True when at least one node serves the driver.
	ConditionReady = "Ready"
)

// ReasonDriverNameTaken: another CSI driver has the name of the PavProvisioner, which is then
// not Accepted and not Ready. Give the PavProvisioner another name, or remove that driver.
const ReasonDriverNameTaken = "DriverNameTaken"

// PavProvisionerSpec is what an administrator writes. Any section, and any field
// below a section, may be a Jinja template (a string) instead of its own type,
// which is why the sections are raw JSON here: internal/steppod evaluates a section
// and then decodes it strictly. The ValidatingAdmissionPolicy installed with the
// resource refuses unknown fields and wrong types of what is not a template.
type PavProvisionerSpec struct {
	// provisioningModes says which volumes this provisioner may serve. Like claimAccess
	// and topology it is never a template.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	ProvisioningModes []ProvisioningMode `json:"provisioningModes"`

	// claimAccess says which claims the templates may read by get_pvc. ClaimNamespace
	// means those of the claim's own namespace, and those that allow it by annotation
	// tarn.dev/readable-from. AnyNamespace means all, as in the original: every user who
	// can create a claim can then have any other claim read. get_pv may read the
	// provisioner's volumes that are bound to such claims.
	// +kubebuilder:default=ClaimNamespace
	// +optional
	ClaimAccess ClaimAccess `json:"claimAccess,omitempty"`

	// topology says which nodes can use a volume: with Cluster every node, as in the
	// original, with Node the one it was created on, with Claims those of its claims. With Node, creation and deletion
	// pods run on that node, and it is the node affinity of the PersistentVolume. If the
	// class waits for the first consumer, the scheduler selects the node, and selects
	// again when the creation fails there. With Claims, the creation pod runs on that node
	// too, and the PersistentVolume has the node affinity of the volumes of its claims.
	// +kubebuilder:default=Cluster
	// +optional
	Topology Topology `json:"topology,omitempty"`

	// claims are claims that Tarn makes for each volume, and deletes after it. A volume over
	// other volumes keeps its data in them. They are in the first namespace of
	// --step-namespaces, where pods of the provisioner mount them.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=name
	// +optional
	Claims []VolumeClaim `json:"claims,omitempty"`

	// nodeCapacity has the node agents measure how much is free for volumes with topology
	// Node, so that the scheduler selects a node with room. Without it, a creation that
	// fails gives the choice back to the scheduler.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	NodeCapacity *NodeCapacity `json:"nodeCapacity,omitempty"`

	// volumeValidation restricts which claims are served, by volumeModes, accessModes,
	// minCapacity and maxCapacity. If the pod of its podTemplate fails, the claim is
	// rejected.
	// +optional
	VolumeValidation *apiextensionsv1.JSON `json:"volumeValidation,omitempty"`

	// volumeCreation creates a volume: handle, capacity and podTemplate.
	// +optional
	VolumeCreation *apiextensionsv1.JSON `json:"volumeCreation,omitempty"`

	// volumeDeletion removes what volumeCreation made: podTemplate.
	// +optional
	VolumeDeletion *apiextensionsv1.JSON `json:"volumeDeletion,omitempty"`

	// volumeExpansion lets volumes grow. The pod of podTemplate makes the storage larger.
	// The pod of nodePodTemplate then runs on each node where the volume is staged, and
	// shares /pav with the staging pod. Either may be left out. Without the section,
	// volumes keep their size.
	// +optional
	VolumeExpansion *apiextensionsv1.JSON `json:"volumeExpansion,omitempty"`

	// volumeRecycling erases a released volume for its next user, if annotation
	// tarn.dev/recycle asks for that. methods are those of Files, Zero and Discard that
	// it supports; the default is all. The pod of podTemplate erases the volume, and
	// fails if it cannot. Tarn itself applies all other methods.
	// +optional
	VolumeRecycling *apiextensionsv1.JSON `json:"volumeRecycling,omitempty"`

	// volumeStaging makes a volume available on a node: podTemplate.
	VolumeStaging *apiextensionsv1.JSON `json:"volumeStaging"`

	// volumeUnstaging undoes volumeStaging: podTemplate.
	// +optional
	VolumeUnstaging *apiextensionsv1.JSON `json:"volumeUnstaging,omitempty"`
}

// PavProvisionerStatus is what Tarn has found out about a provisioner.
type PavProvisionerStatus struct {
	// observedGeneration is the generation of the conditions.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// nodes is on how many nodes the kubelet has the driver registered.
	// +optional
	Nodes int32 `json:"nodes,omitempty"`
	// volumes is how many volumes this provisioner has made that still exist.
	// +optional
	Volumes int32 `json:"volumes,omitempty"`
	// conditions are Accepted and Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PavProvisioner describes, as templates of pods, how volumes are validated,
// created, deleted, staged on a node and unstaged. Its name is the CSI driver name
// and the value of a StorageClass's provisioner field.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pavprovisioners,singular=pavprovisioner,shortName=pav,scope=Cluster
// +kubebuilder:metadata:labels="tarn.dev/deletion-protection=true"
// +kubebuilder:printcolumn:name="Modes",type=string,JSONPath=`.spec.provisioningModes`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Volumes",type=integer,JSONPath=`.status.volumes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",message="metadata.name must be a DNS label: at most 63 characters, lower-case letters, digits and '-', no dots; it is used as the CSI driver name"
type PavProvisioner struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Unknown fields are kept until admission, so that the policy can refuse them: a
	// misspelt volumeDeletion that is dropped silently would leave storage behind.
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec PavProvisionerSpec `json:"spec"`
	// +optional
	Status PavProvisionerStatus `json:"status,omitempty"`
}

// PavProvisionerList is a list of PavProvisioner.
//
// +kubebuilder:object:root=true
type PavProvisionerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PavProvisioner `json:"items"`
}
