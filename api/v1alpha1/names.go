package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SystemNamespace is where Tarn's own parts run.
const SystemNamespace = "tarn-system"

// StepNamespace is where pods of PavProvisioners run whose templates name no namespace.
const StepNamespace = "tarn-volumes"

// Labels on every pod Tarn makes.
const (
	// LabelProvisioner carries the name of the PavProvisioner a pod, PavVolume or
	// PavStage belongs to.
	LabelProvisioner = "tarn.dev/provisioner"
	// LabelStep carries the step a pod performs, one of the Step constants.
	LabelStep = "tarn.dev/step"
	// LabelVolume carries the name of the PersistentVolume (and PavVolume) a pod
	// or PavStage is for, cut to the 63 characters a label value may have.
	LabelVolume = "tarn.dev/volume"
	// LabelCapacityNode carries the name of the node that a CSIStorageCapacity is about, cut
	// like LabelVolume. AnnotationNode has the whole name.
	LabelCapacityNode = "tarn.dev/capacity-node"
	// LabelStage carries the uid of the PavStage a staging, node expansion or
	// unstaging pod is for.
	LabelStage = "tarn.dev/stage-uid"
	// LabelRecord carries the uid of the PavVolume a validation, creation, expansion
	// or deletion pod is for, or a claim that was made for the volume.
	LabelRecord = "tarn.dev/record-uid"
)

// Step is what a pod made from a template does for its volume.
type Step string

// The steps, which are also the values of LabelStep.
const (
	StepValidation Step = "validation"
	StepCreation   Step = "creation"
	StepDeletion   Step = "deletion"
	StepStaging    Step = "staging"
	StepUnstaging  Step = "unstaging"
	// StepExpansion makes the storage of a volume larger, StepNodeExpansion what a
	// node has of it.
	StepExpansion     Step = "expansion"
	StepNodeExpansion Step = "node-expansion"
)

// Annotations on pods Tarn makes.
const (
	// AnnotationResult carries what a pod that runs to its end has left in /pav,
	// as JSON of PodResult. The node agent writes it; it is the only thing it
	// ever writes on a pod.
	AnnotationResult = "tarn.dev/result"
	// AnnotationInputs carries what the template's other fields came to when the
	// pod was made (a creation's handle and capacity), as JSON of PodInputs, so
	// that they are not evaluated again when the pod has ended.
	AnnotationInputs = "tarn.dev/inputs"
)

// AnnotationRecord is on each PersistentVolume Tarn makes: the uid of its PavVolume. It
// tells them from those of other provisioners though the record is gone.
const AnnotationRecord = "tarn.dev/record"

// AnnotationReadableFrom is on a claim and names namespaces, between commas, or * for all: for
// claims there the templates of every provisioner may read this one by get_pvc.
const AnnotationReadableFrom = "tarn.dev/readable-from"

// AnnotationKept is on each PersistentVolume whose record `tarn uninstall --keep-volumes`
// has let go: the PersistentVolume's own uid, by which a later Tarn knows that it was made
// by an earlier one. One that was restored from a backup has another uid.
const AnnotationKept = "tarn.dev/kept"

// Annotations by which an administrator has Tarn go on with a PavVolume. tarn retry and
// tarn forget write them.
const (
	// AnnotationRetry names the attempt that is not to be paused after: STEP-ATTEMPT, such
	// as deletion-3. With /current-class behind it, the attempt that follows undoes a failed
	// creation with the parameters that the class has now.
	AnnotationRetry = "tarn.dev/retry"
	// AnnotationForget is the uid of a PavVolume that is given up when it is deleted:
	// whatever storage it stands for stays.
	AnnotationForget = "tarn.dev/forget"
)

// AnnotationDepth is on a claim that was made for a volume: how many volumes lie over it.
const AnnotationDepth = "tarn.dev/depth"

// LabelDeletionProtection with the value "true", on a claim, a PersistentVolume, a
// PersistentVolumeSet, an App or a namespace, makes the API server refuse to delete
// it, whoever asks. Nothing of Tarn's destroys what stands behind such an object.
const LabelDeletionProtection = "tarn.dev/deletion-protection"

// Finalizers.
const (
	// FinalizerRecord keeps a PavVolume until what it stands for is destroyed.
	FinalizerRecord = "tarn.dev/volume-record"
	// FinalizerStagePod keeps a PavStage until its pods are gone and unstaging is
	// done. The stage controller removes it.
	FinalizerStagePod = "tarn.dev/stage-pod"
	// FinalizerStageNode keeps a PavStage until the node has no mount or folder
	// of it. The node agent removes it.
	FinalizerStageNode = "tarn.dev/stage-node"
	// FinalizerProvisioner keeps a PavProvisioner while it is in use.
	FinalizerProvisioner = "tarn.dev/provisioner-in-use"
	// FinalizerInProcess keeps a claim while an in-process plugin may have made
	// something for it that no PersistentVolume tells of.
	FinalizerInProcess = "tarn.dev/in-process"
)

// Annotations of in-process plugins.
const (
	// AnnotationPlugin is the plugin that makes a claim's volume, beside
	// FinalizerInProcess.
	AnnotationPlugin = "tarn.dev/plugin"
	// AnnotationNode is the node a plugin's volume lies on, or is being made on; on
	// PersistentVolumes, and on claims beside FinalizerInProcess. Absent where the plugin's
	// volumes lie on no node. It is also the node that a CSIStorageCapacity is about.
	AnnotationNode = "tarn.dev/node"
	// AnnotationPlace is an opaque id of the storage a plugin's volume lies in, or is being
	// made in, which another storage found at the same address does not have; beside
	// AnnotationNode, and absent where the plugin knows no such id, or made the volume
	// before there were any.
	AnnotationPlace = "tarn.dev/place"
	// AnnotationCapacityPath is the directory of the node whose free space is the capacity of
	// a CSIStorageCapacity, less AnnotationCapacityReserve.
	AnnotationCapacityPath = "tarn.dev/capacity-path"
	// AnnotationCapacityReserve is what must stay free there, as in spec.nodeCapacity.reserve.
	AnnotationCapacityReserve = "tarn.dev/capacity-reserve"
)

// ResultsDriver is the name of Tarn's own CSI driver, whose inline volumes are the
// /pav of validation, creation, deletion and other pods that run to their end.
const ResultsDriver = "pav.tarn.dev"

// DefaultStateDir is the default folder of the node agent on every node. Staging
// pods get their /pav from below it, so controller and node agent must agree on it.
// It lies inside the kubelet's plugins folder, which the kubelet does not clean and
// every CSI installation mounts with bidirectional propagation.
const DefaultStateDir = "/var/lib/kubelet/plugins/pav.tarn.dev"

// PodInputs is the JSON of AnnotationInputs.
type PodInputs struct {
	// DeadlineSeconds is how long a staging pod has until the volume is there; 0 for
	// Tarn's default.
	DeadlineSeconds int64 `json:"deadlineSeconds,omitempty"`
	// Handle is the evaluated volumeCreation.handle, empty if there is none.
	Handle string `json:"handle,omitempty"`
	// Capacity is the evaluated volumeCreation.capacity in bytes, 0 if there is none.
	Capacity int64 `json:"capacity,omitempty"`
	// First says that no pod of this attempt was started before this one.
	First bool `json:"first,omitempty"`
}

// PodResult is the JSON of AnnotationResult.
type PodResult struct {
	// Succeeded says how the pod ended, when the container runtime told the node
	// agent before the kubelet told the API server; nil means: see status.phase.
	Succeeded *bool `json:"succeeded,omitempty"`
	// ExitCodes holds the exit code of each container that ended with another
	// code than 0, by name; set together with Succeeded.
	ExitCodes map[string]int32 `json:"exitCodes,omitempty"`
	// Handle is /pav/handle, blanks around it removed; nil if there was none.
	Handle *string `json:"handle,omitempty"`
	// Capacity is /pav/capacity, blanks around it removed; nil if there was none.
	Capacity *string `json:"capacity,omitempty"`
	// Error is /pav/error, blanks around it removed, invalid UTF-8 replaced, cut
	// to 4 KiB.
	Error string `json:"error,omitempty"`
	// Unreadable says why a file of /pav could not be read: not a regular file, a
	// symbolic link, too large.
	Unreadable string `json:"unreadable,omitempty"`
}

// StageName is the name of the PavStage of a volume on a node: the same volume,
// node and readOnly always give the same name, so two requests cannot stage twice.
//
// Policy node.tarn.dev compares it, so that the node agent of one node cannot take the name that
// another one needs: <uid>.<node>, or <uid>-ro.<node>. A node whose name is too long for that has
// the names of HashedStageName.
func StageName(volumeUID types.UID, nodeName string, readOnly bool) string {
	if len(nodeName) > maxNodeInStageName {
		return HashedStageName(volumeUID, nodeName, readOnly)
	}
	only := ""
	if readOnly {
		only = "-ro"
	}
	return string(volumeUID) + only + "." + nodeName
}

// maxNodeInStageName leaves room for the uid, and for what Events append to the name.
const maxNodeInStageName = 180

// HashedStageName is the name of a stage that was made before StageName named the node. Such a
// stage is used until it ends.
func HashedStageName(volumeUID types.UID, nodeName string, readOnly bool) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%t", volumeUID, nodeName, readOnly))
	return "stage-" + hex.EncodeToString(sum[:16])
}

// NewStage is a PavStage as it is created.
func NewStage(provisioner ProvisionerReference, volumeName string, volumeUID types.UID, nodeName string, readOnly bool) *PavStage {
	return &PavStage{
		ObjectMeta: metav1.ObjectMeta{
			Name:       StageName(volumeUID, nodeName, readOnly),
			Labels:     map[string]string{LabelProvisioner: provisioner.Name, LabelVolume: VolumeLabel(volumeName)},
			Finalizers: []string{FinalizerStagePod, FinalizerStageNode},
		},
		Spec: PavStageSpec{Provisioner: provisioner, VolumeName: volumeName, VolumeUID: volumeUID, NodeName: nodeName, ReadOnly: readOnly},
	}
}

// VolumeLabel is the value of LabelVolume for a PersistentVolume name.
func VolumeLabel(volumeName string) string {
	if len(volumeName) <= 63 {
		return volumeName
	}
	return strings.TrimRight(volumeName[:63], "-._")
}
