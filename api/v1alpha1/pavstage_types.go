package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StageNodePhase is the node agent's side of a stage.
//
//	Waiting -> Staged -> (deletion requested) -> Unmounted -> (finalizer off)
//	   |       |    ^             ^
//	   |       v    |             |
//	   |        Lost -------------+
//	   |                          |
//	   +-> Failed ----------------+
//
// +kubebuilder:validation:Enum=Waiting;Staged;Lost;Failed;Unmounted
type StageNodePhase string

// The phases of status.node.
const (
	// StageWaiting: the staging pod has not made the volume available yet.
	StageWaiting StageNodePhase = "Waiting"
	// StageStaged: status.node.path was checked and may be bind-mounted.
	StageStaged StageNodePhase = "Staged"
	// StageLost: the volume was staged and is lost, see status.node.loss. It is staged
	// again, unless the recovery is None.
	StageLost StageNodePhase = "Lost"
	// StageFailed: staging failed, the node agent has requested the deletion of the
	// stage; the next attempt is a new one.
	StageFailed StageNodePhase = "Failed"
	// StageUnmounted: deletion is requested, the staging pod is gone, and the node
	// has no mount left at the targets or below the stage's directory. The unstaging
	// pod may run.
	StageUnmounted StageNodePhase = "Unmounted"
)

// StagePodPhase is the stage controller's side of a stage.
//
//	Validating (a volume written by hand) -> Failed
//	    v
//	Starting -> Running -> Succeeded
//	 ^  |          |           |
//	 |  +----------+-----------+-> Failed
//	 |  v          v           v     v
//	 +---------------- Gone (where the volume is lost)
//	           (deletion requested)
//	    -> Stopped -> Unstaging -> Unstaged -> (finalizer off)
//
// +kubebuilder:validation:Enum=Validating;Starting;Running;Succeeded;Failed;Gone;Stopped;Unstaging;Unstaged
type StagePodPhase string

// The phases of status.pod.
const (
	// StagePodValidating: the validation pod of a volume that was written by hand is
	// or may be created; nothing is staged before it has succeeded.
	StagePodValidating StagePodPhase = "Validating"
	// StagePodStarting: the staging pod is or may be created; none of its
	// containers runs yet.
	StagePodStarting StagePodPhase = "Starting"
	// StagePodRunning: a container of the staging pod runs or has run.
	StagePodRunning StagePodPhase = "Running"
	// StagePodSucceeded: the staging pod ended well.
	StagePodSucceeded StagePodPhase = "Succeeded"
	// StagePodFailed: the templates could not be evaluated, the pod was refused,
	// or it failed; message says which.
	StagePodFailed StagePodPhase = "Failed"
	// StagePodGone: the staging pod is gone though the stage goes on; the next one is
	// started when the node agent has cleared the stage's directory.
	StagePodGone StagePodPhase = "Gone"
	// StagePodStopped: deletion is requested and the staging pod is gone.
	StagePodStopped StagePodPhase = "Stopped"
	// StagePodUnstaging: the unstaging pod is or may be created.
	StagePodUnstaging StagePodPhase = "Unstaging"
	// StagePodUnstaged: unstaging is done, nothing of the stage runs any more.
	StagePodUnstaged StagePodPhase = "Unstaged"
)

// StageConsumer is a pod that is going to use a volume.
type StageConsumer struct {
	// namespace of the pod.
	Namespace string `json:"namespace"`
	// name of the pod.
	Name string `json:"name"`
	// uid of the pod.
	UID types.UID `json:"uid"`
}

// PavStageSpec says which volume is made available on which node. It is written once, by
// the node agent or ahead of it by the stage controller.
type PavStageSpec struct {
	// provisioner whose volumeStaging is used.
	Provisioner ProvisionerReference `json:"provisioner"`
	// volumeName is the name of the PersistentVolume.
	VolumeName string `json:"volumeName"`
	// volumeUID is the uid of the PersistentVolume.
	VolumeUID types.UID `json:"volumeUID"`
	// nodeName is the node.
	NodeName string `json:"nodeName"`
	// readOnly is what the templates read as readOnly. It is true where the volume can only be
	// read, and in the stage of the read-only pods where a template of staging or unstaging
	// reads it. Otherwise these share the stage of the other pods, with read-only mounts.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// aheadFor is the pod for which the stage controller created the stage before the
	// kubelet asked for the volume.
	// +optional
	AheadFor *StageConsumer `json:"aheadFor,omitempty"`
}

// PavStageNodeStatus is written by the node agent alone.
type PavStageNodeStatus struct {
	// phase of the node agent's part: whether the volume is staged, lost or unmounted.
	// +optional
	Phase StageNodePhase `json:"phase,omitempty"`
	// message says what is waited for, or what failed, with the text of /pav/error.
	// +optional
	Message string `json:"message,omitempty"`
	// path is what /pav/volume was found to be, on the node.
	// +optional
	Path string `json:"path,omitempty"`
	// targets are the paths at which the kubelet has asked for the volume, written
	// before anything is mounted there. The stage ends when the last one goes.
	// +listType=set
	// +optional
	Targets []string `json:"targets,omitempty"`
	// taken says that the kubelet has asked for the volume of a stage that was begun
	// ahead. From then on it is as any other.
	// +optional
	Taken bool `json:"taken,omitempty"`
	// inUse says, once deletion is requested of a stage that was staged, whether the
	// volume is still mounted at a target. It is absent until the node agent has looked.
	// +optional
	InUse *bool `json:"inUse,omitempty"`
	// loss tells of the latest loss of the volume while it was in use.
	// +optional
	Loss *StageLoss `json:"loss,omitempty"`
	// conditions are Healthy.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// expansion is the last request to grow the volume on this node.
	// +optional
	Expansion *StageExpansionRequest `json:"expansion,omitempty"`
}

// PavStagePodStatus is written by the stage controller alone.
type PavStagePodStatus struct {
	// phase of the stage controller's part: which pod runs or has ended.
	// +optional
	Phase StagePodPhase `json:"phase,omitempty"`
	// message says what went wrong or what is waited for.
	// +optional
	Message string `json:"message,omitempty"`
	// namespace of the staging and unstaging pods.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the pod of this phase.
	// +optional
	Name string `json:"name,omitempty"`
	// uid of the pod of this phase.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// staged says that a staging pod was sent to the API server, so that
	// unstaging is due when the stage ends.
	// +optional
	Staged bool `json:"staged,omitempty"`
	// unstageAttempts is how often the unstaging pod was begun, the current one
	// included.
	// +optional
	UnstageAttempts int32 `json:"unstageAttempts,omitempty"`
	// expansion is how the node's last request to grow the volume stands.
	// +optional
	Expansion *StageExpansion `json:"expansion,omitempty"`
	// nextAttemptTime is when a failed unstaging is tried again, or a staging pod
	// started again.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
	// attempt is that of the staging pod, from 1.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// recovery is what volumeStaging said when the staging pod was made.
	// +optional
	Recovery StageRecovery `json:"recovery,omitempty"`
	// restarts is how often in a row the staging pod was started again after it had run
	// only for a short time.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`
	// startTime is when the staging pod of this attempt was started.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// claimDeleted is the uid of the volume's claim once the claim is being deleted. Pods that
	// have never started do not get the volume any more.
	// +optional
	ClaimDeleted types.UID `json:"claimDeleted,omitempty"`
	// lossTold is the number of the latest loss whose beginning was reported to the
	// pods that use the volume.
	// +optional
	LossTold int32 `json:"lossTold,omitempty"`
	// reboundTold is the number of the latest loss whose end was reported to them.
	// +optional
	ReboundTold int32 `json:"reboundTold,omitempty"`
	// evictions are the pods that are still to be evicted because the volume was lost,
	// with what prevents each eviction.
	// +listType=atomic
	// +optional
	Evictions []StageEviction `json:"evictions,omitempty"`
}

// PavStageStatus has one part for each writer.
type PavStageStatus struct {
	// node is the node agent's part.
	// +optional
	Node PavStageNodeStatus `json:"node,omitempty"`
	// pod is the stage controller's part.
	// +optional
	Pod PavStagePodStatus `json:"pod,omitempty"`
}

// PavStage is one volume made available on one node. Every pod that uses the volume there
// shares it. Only if the templates of staging or unstaging read readOnly, read-only pods
// have a stage of their own. Its name is that of volume, node and readOnly: see StageName.
//
// The node agent creates it with both finalizers when the kubelet asks for the volume, and
// adds the target to status.node.targets. The stage controller then starts the staging pod
// on the node and mirrors the pod into status.pod. The pod's /pav is the directory
// `<state dir>/stages/<uid of the PavStage>/pav`. When the pod has succeeded, or /pav/ready
// exists, the node agent checks /pav/volume. It records path and phase Staged, and
// bind-mounts the volume at each target.
//
// When the last target is gone, or staging fails, the node agent deletes the object. The
// stage controller removes the staging pod (Stopped), and the node agent unmounts what is
// left (Unmounted). Then the stage controller runs the unstaging pod (Unstaged) and removes
// its finalizer. Last, the node agent removes the directory and its own finalizer.
//
// The stage controller may create the stage ahead, when the kubelet has accepted a pod but
// has not yet asked for the volume (spec.aheadFor). It starts the staging pod when the node
// agent has answered with phase Waiting. Without a target the stage stays until the kubelet
// has asked (status.node.taken). If the pod is gone before that, the stage controller
// deletes the stage. Until then no stage of a volume for one node is started on another.
//
// Users may delete the stage too. Then the staging pod stays while the node agent finds the
// volume mounted at a target (inUse). The stage ends when the last target is gone.
//
// When the volume is lost while pods use it, the node agent writes status.node.loss and
// phase Lost. The stage controller removes the staging pod (Gone). The node agent unmounts
// and empties the directory (loss.cleared), and the stage controller starts the next
// attempt. When that has made the volume available, the node agent mounts it again at each
// target and writes Staged.
//
// While the stage is Staged, the kubelet may ask for an expansion. The node agent writes the
// next attempt into status.node.expansion. The stage controller runs the node expansion pod,
// with the same /pav, and answers with that attempt in status.pod.expansion. A stage ends
// only when that pod, too, is gone.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pavstages,singular=pavstage,scope=Cluster
// +kubebuilder:metadata:labels="tarn.dev/deletion-protection=true"
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:selectablefield:JSONPath=`.spec.volumeName`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volumeName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="ReadOnly",type=boolean,JSONPath=`.spec.readOnly`,priority=1
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.node.phase`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.pod.phase`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.node.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Losses",type=integer,JSONPath=`.status.node.loss.number`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.node.message`
// +kubebuilder:printcolumn:name="Pod-Message",type=string,JSONPath=`.status.pod.message`
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="spec is written once and cannot be changed"
type PavStage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PavStageSpec `json:"spec"`
	// +optional
	Status PavStageStatus `json:"status,omitempty"`
}

// StageWaits begins the message of a stage that waits for one on another node.
const StageWaits = "waiting for PavStage "

// StageShared is in the message of a stage that failed because another volume of the same driver
// and volumeHandle is staged.
const StageShared = "one of them at a time can be staged"

// NamedForItsSpec says that the stage has a name that is derived from its spec.
func (s *PavStage) NamedForItsSpec() bool {
	spec := s.Spec
	return s.Name == StageName(spec.VolumeUID, spec.NodeName, spec.ReadOnly) || s.Name == HashedStageName(spec.VolumeUID, spec.NodeName, spec.ReadOnly)
}

// Void says that the stage controller has given the stage up, or ended it, before it sent any pod.
// It never sends one for it then, so the stage keeps nothing from being deleted. The node agent has
// no part in this: it may be that of a stolen node.
func (s *PavStage) Void() bool {
	switch p := s.Status.Pod; p.Phase {
	case StagePodFailed, StagePodStopped, StagePodUnstaged:
		return !p.Staged && p.Name == ""
	}
	return false
}

// Awaited says that a stage was begun ahead and that the kubelet has not asked for it yet.
func (s *PavStage) Awaited() bool {
	return s.Spec.AheadFor != nil && !s.Status.Node.Taken && len(s.Status.Node.Targets) == 0
}

// PavStageList is a list of PavStage.
//
// +kubebuilder:object:root=true
type PavStageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PavStage `json:"items"`
}
