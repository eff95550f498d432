package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels, annotations and finalizers of applications.
const (
	// LabelApp carries the name of the App an object was made for, LabelAppVolume the
	// name of the volume within it. A claim with both, in the App's namespace, is the
	// App's own, whichever App of that name made it: so a preserved one is found again.
	LabelApp       = "tarn.dev/app"
	LabelAppVolume = "tarn.dev/app-volume"
	// LabelDeployed is on the pods of Apps: a hash of what they run, by which those of one
	// deploy are told from those of an earlier one.
	LabelDeployed = "tarn.dev/deployed"
	// AnnotationPreserve with the value "true" is on claims that stay when their App is
	// deleted.
	AnnotationPreserve = "tarn.dev/preserve-on-delete"
	// AnnotationMadeFor is on claims: the UID of the App that they were made for. One
	// that is brought back from the trash has it no more.
	AnnotationMadeFor = "tarn.dev/made-for"
	// FinalizerApp keeps an App until its pods and the claims that are not preserved
	// are gone.
	FinalizerApp = "tarn.dev/app"
)

// ConditionDeployed is True while an App's claims, Deployment and ConfigMap are as the
// spec of status.observedGeneration says; else its reason and message say what is
// refused or under way. ConditionReady is True while the App is Deployed, every pod
// asked for is ready, and no volume is being resized.
const ConditionDeployed = "Deployed"

// Reasons of conditions Deployed and Ready of an App.
const (
	// ReasonNothingDeployed: the spec names no image yet. Deploy a paas.toml.
	ReasonNothingDeployed = "NothingDeployed"
	// ReasonDeploying: the claims, the Deployment and the ConfigMap are being created or changed.
	ReasonDeploying = "Deploying"
	// ReasonDeployed: everything that the spec asks for exists.
	ReasonDeployed = "Deployed"
	// ReasonRefused: the spec cannot be deployed. Change it as the message says.
	ReasonRefused = "Refused"
	// ReasonWaitingForVolumes: a claim is not bound. See tarn explain app.
	ReasonWaitingForVolumes = "WaitingForVolumes"
	// ReasonWaitingForPods: fewer pods are ready than spec.replicas.
	ReasonWaitingForPods = "WaitingForPods"
	// ReasonPodsFailing: a pod fails repeatedly or cannot start. Correct the cause in the message.
	ReasonPodsFailing = "PodsFailing"
	// ReasonResizing: a volume is being made larger.
	ReasonResizing = "Resizing"
	// ReasonResizeFailed: a volume could not be made larger. Correct the cause in the message; it is
	// retried.
	ReasonResizeFailed = "ResizeFailed"
	// ReasonReady: all pods are ready, and no volume is being resized.
	ReasonReady = "Ready"
	// ReasonDeleting: the App is being deleted.
	ReasonDeleting = "Deleting"
)

// AppVolume is a volume of an App: a claim named paas-app-{app}-{name}.
type AppVolume struct {
	// name of the volume within the App.
	// +kubebuilder:validation:MaxLength=52
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// mountPath is the directory of the container at which it appears.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && self != '/' && !self.endsWith('/') && !self.contains(':') && !self.contains('//') && !(self + '/').contains('/./') && !(self + '/').contains('/../')",message="mountPath must be a plain absolute path other than /, for example /data"
	// +kubebuilder:validation:XValidation:rule="!['/proc', '/sys', '/dev', '/pav', '/run/secrets', '/var/run/secrets'].exists(r, self == r || self.startsWith(r + '/') || r.startsWith(self + '/'))",message="mountPath is reserved, or hides a directory that is; choose another, for example /data"
	MountPath string `json:"mountPath"`
	// sizeGi is how large it is to be, in GiB. A claim that is larger already stays as
	// it is: volumes never shrink.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	SizeGi int64 `json:"sizeGi"`
	// accessMode of a claim that has yet to be made; one that exists keeps its own.
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteMany
	// +kubebuilder:default=ReadWriteOnce
	// +optional
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode,omitempty"`
	// storageClass of a claim that has yet to be made; empty means the class that is
	// configured for the access mode.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StorageClass string `json:"storageClass,omitempty"`
	// preserveOnDelete keeps the claim when the App is deleted. An App of the same name
	// finds it again.
	// +optional
	PreserveOnDelete bool `json:"preserveOnDelete,omitempty"`
}

// SecretKey names a Secret and a key in it, as SECRET/KEY.
//
// +kubebuilder:validation:MaxLength=507
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+$`
type SecretKey string

// AppSpec is an application as it was last deployed.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) || !has(self.volumes) || self.volumes.size() == 0",message="image must name the container image to run before there can be volumes"
// +kubebuilder:validation:XValidation:rule="(has(self.command) ? self.command.map(c, size(c)).sum() : 0) + (has(self.args) ? self.args.map(a, size(a)).sum() : 0) + (has(self.env) ? self.env.map(k, size(k) + size(self.env[k])).sum() : 0) <= 262144",message="command, args and env have more than 262144 characters together; put large texts into a ConfigMap or an image"
type AppSpec struct {
	// image of the container. Without one there is nothing to run yet.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// command replaces the image's entry point.
	// +kubebuilder:validation:MaxItems=2000
	// +kubebuilder:validation:items:MaxLength=262144
	// +optional
	Command []string `json:"command,omitempty"`
	// args replace the image's arguments.
	// +kubebuilder:validation:MaxItems=2000
	// +kubebuilder:validation:items:MaxLength=262144
	// +optional
	Args []string `json:"args,omitempty"`
	// port the container listens on.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// env are environment variables of the container.
	// +kubebuilder:validation:MaxProperties=2000
	// +optional
	Env map[string]string `json:"env,omitempty"`
	// secrets are environment variables of the container from Secrets of the App's
	// namespace. A pod gets the values that the Secrets have when it starts. One that is in
	// env too has the value of the Secret.
	// +kubebuilder:validation:MaxProperties=100
	// +optional
	Secrets map[string]SecretKey `json:"secrets,omitempty"`
	// replicas is how many pods are to run. More than one is refused while a volume's
	// claim is ReadWriteOnce.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// volumes that are mounted. The claim of one that is taken out is detached and
	// kept.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.all(b, a.name == b.name || (a.mountPath != b.mountPath && !b.mountPath.startsWith(a.mountPath + '/'))))",message="two volumes have the same mountPath, or one lies within the other's; put them side by side"
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []AppVolume `json:"volumes,omitempty"`
}

// AppVolumePhase is what a claim of an App is.
type AppVolumePhase string

// The phases: those of a claim, and what comes before and in between.
const (
	// AppVolumeMissing: there is no claim.
	AppVolumeMissing AppVolumePhase = "Missing"
	// AppVolumePending: the claim has no volume yet.
	AppVolumePending AppVolumePhase = "Pending"
	// AppVolumeBound: the claim has its volume.
	AppVolumeBound AppVolumePhase = "Bound"
	// AppVolumeLost: the volume of the claim is gone.
	AppVolumeLost AppVolumePhase = "Lost"
	// AppVolumeTerminating: the claim is being deleted.
	AppVolumeTerminating AppVolumePhase = "Terminating"
	// AppVolumeForeign: the claim is not the App's, and is not touched.
	AppVolumeForeign AppVolumePhase = "Foreign"
)

// AppResize is how far the growth of a volume is; empty where none is under way.
type AppResize string

// The states of a growth.
const (
	// AppResizing: the claim asks for more than it has.
	AppResizing AppResize = "Resizing"
	// AppResizeWaiting: the storage has grown, its file system waits for a node that
	// uses the volume.
	AppResizeWaiting AppResize = "WaitingForNode"
	// AppResizeFailed: it failed, and is tried again.
	AppResizeFailed AppResize = "Failed"
)

// AppVolumeStatus is what there is of a volume, as its live claim says.
type AppVolumeStatus struct {
	// name of the volume within the App.
	Name string `json:"name"`
	// claimName is the name of its claim.
	ClaimName string `json:"claimName"`
	// phase of the claim.
	Phase AppVolumePhase `json:"phase"`
	// requested is how large the claim asks to be.
	// +optional
	Requested *resource.Quantity `json:"requested,omitempty"`
	// capacity is how large it is.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// accessMode of the claim.
	// +optional
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode,omitempty"`
	// storageClass of the claim.
	// +optional
	StorageClass string `json:"storageClass,omitempty"`
	// preserveOnDelete says that the claim stays when the App is deleted.
	// +optional
	PreserveOnDelete bool `json:"preserveOnDelete,omitempty"`
	// resize says how far a growth is.
	// +optional
	Resize AppResize `json:"resize,omitempty"`
	// message says what the volume waits for, or why it is refused.
	// +optional
	Message string `json:"message,omitempty"`
}

// AppStatus is what there is of an App.
type AppStatus struct {
	// observedGeneration is the metadata.generation that the rest is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Deployed and Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// replicas is how many pods there are.
	// +optional
	Replicas int32 `json:"replicas"`
	// readyReplicas is how many of them are ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// selector of the pods, as text.
	// +optional
	Selector string `json:"selector,omitempty"`
	// volumes that are mounted.
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []AppVolumeStatus `json:"volumes,omitempty"`
	// detached volumes are mounted no more, and kept until the App is deleted.
	// +listType=map
	// +listMapKey=name
	// +optional
	Detached []AppVolumeStatus `json:"detached,omitempty"`
	// warnings are what is right but perhaps not meant, as that the pod is stopped
	// before a new one starts because a volume is ReadWriteOnce.
	// +optional
	Warnings []string `json:"warnings,omitempty"`
}

// App is an application and its volumes, as last deployed.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=apps,singular=app,shortName=app
// +kubebuilder:metadata:labels="tarn.dev/deletion-protection=true"
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 51 && !self.metadata.name.contains('.')",message="metadata.name must have at most 51 characters and no dot: it is part of other names"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.volumes) || self.spec.volumes.all(v, self.metadata.name.size() + v.name.size() <= 53)",message="the claim of a volume would have a name of more than 63 characters, paas-app-{app}-{volume}; shorten one of the two"
type App struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec AppSpec `json:"spec,omitempty"`
	// +optional
	Status AppStatus `json:"status,omitempty"`
}

// AppList is a list of App.
//
// +kubebuilder:object:root=true
type AppList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []App `json:"items"`
}
