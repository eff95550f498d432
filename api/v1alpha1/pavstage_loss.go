package v1alpha1

import (
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StageRecovery is what is done when a volume is lost while pods use it: see
// docs/design/0002-staging-recovery.md.
//
// +kubebuilder:validation:Enum=Rebind;RestartConsumers;None
type StageRecovery string

// The recoveries.
const (
	// RecoveryRebind stages the volume again and binds it anew at every target and
	// inside the containers that run: new opens work, open files stay lost.
	RecoveryRebind StageRecovery = "Rebind"
	// RecoveryRestartConsumers stages the volume again, binds it anew at every
	// target, and evicts the pods that use it and have a controller.
	RecoveryRestartConsumers StageRecovery = "RestartConsumers"
	// RecoveryNone tells, and stages the volume again only for the next new pod.
	RecoveryNone StageRecovery = "None"
)

// ConditionHealthy is True on a PavStage whose volume is what was staged, False while
// it is lost; absent before it was staged the first time. The node agent writes it.
const ConditionHealthy = "Healthy"

// Reasons of condition Healthy of a PavStage.
const (
	// ReasonStaged: the volume was staged and never lost.
	ReasonStaged = "Staged"
	// ReasonRebound: it was lost, staged again and mounted again.
	ReasonRebound = "Rebound"
	// ReasonServerDied: the server of the file system has ended. Restart it, or see why it ends.
	ReasonServerDied = "ServerDied"
	// ReasonMountGone: the volume is not mounted any more, or /pav/volume is missing.
	ReasonMountGone = "MountGone"
	// ReasonMountReplaced: another valid mount has replaced the volume.
	ReasonMountReplaced = "MountReplaced"
	// ReasonPodEnded: the staging pod failed or was deleted while it had to run.
	ReasonPodEnded = "StagingPodEnded"
)

// StageLoss tells of the latest loss of a volume.
type StageLoss struct {
	// number counts the losses of the stage, from 1.
	Number int32 `json:"number"`
	// attempt is the staging pod's that had made the lost volume available.
	Attempt int32 `json:"attempt"`
	// failed is the latest attempt to stage it again that failed, 0 if none did.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// cleared is the latest attempt after which the stage's directory was cleared: the
	// next one may start.
	// +optional
	Cleared int32 `json:"cleared,omitempty"`
	// reason is one of ServerDied, MountGone, MountReplaced, StagingPodEnded.
	Reason string `json:"reason"`
	// message says what was seen.
	// +optional
	Message string `json:"message,omitempty"`
	// time is when it was noticed.
	Time metav1.Time `json:"time"`
	// reboundTime is when the volume was there again; absent until then.
	// +optional
	ReboundTime *metav1.Time `json:"reboundTime,omitempty"`
	// left are the mounts that still show the lost volume after that.
	// +listType=atomic
	// +optional
	Left []StageLeft `json:"left,omitempty"`
}

// Spent says whether a staging pod's attempt will not make the volume available
// again: it is the one that was lost, or has failed since.
func (l *StageLoss) Spent(attempt int32) bool { return attempt <= max(l.Attempt, l.Failed) }

// StageLeft is a mount that could not be bound anew: of a running container, or the
// kubelet's of a subPath, which a container is started anew with.
type StageLeft struct {
	// podUID is the pod's.
	PodUID types.UID `json:"podUID"`
	// path is where the running container has the mount; empty if that is not known.
	// +optional
	Path string `json:"path,omitempty"`
	// container is set for the kubelet's mount of a subPath: the container that cannot be
	// started anew with it.
	// +optional
	Container string `json:"container,omitempty"`
	// message says why.
	Message string `json:"message"`
}

// StageEviction is a pod that is to be evicted (recovery RestartConsumers) and whose
// eviction the API server has not agreed to yet. It is tried until the pod is gone.
type StageEviction struct {
	// podUID is the pod's.
	PodUID types.UID `json:"podUID"`
	// namespace of the pod.
	Namespace string `json:"namespace"`
	// name of the pod.
	Name string `json:"name"`
	// refusals counts the attempts that were refused.
	// +optional
	Refusals int32 `json:"refusals,omitempty"`
	// message is the latest answer, such as that of a disruption budget.
	// +optional
	Message string `json:"message,omitempty"`
	// nextAttemptTime is when it is tried again; absent before the first attempt.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
}

// PodOfTarget gives the uid of the pod that one of a PavStage's targets is for:
// <root>/pods/<pod>/volumes/kubernetes.io~csi/<volume>/mount, or for a block volume
// <root>/plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<pod>. It is empty
// for a path that is neither.
func PodOfTarget(target string) types.UID {
	parts := strings.Split(filepath.Clean(target), "/")
	n := len(parts)
	switch {
	case n >= 6 && parts[n-1] == "mount" && parts[n-3] == "kubernetes.io~csi" && parts[n-4] == "volumes":
		return types.UID(parts[n-5])
	case n >= 4 && parts[n-3] == "publish" && parts[n-4] == "volumeDevices":
		return types.UID(parts[n-1])
	}
	return ""
}
