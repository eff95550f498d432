package expand

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Kubernetes' own annotations of a claim that is being resized.
const (
	annResizer       = "volume.kubernetes.io/storage-resizer"
	annNoNodeResizes = "volume.kubernetes.io/node-expansion-not-required"
)

// resizeConditions are the claim conditions about its size.
var resizeConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

// resizing says whether a claim requests more than it has, or has a resize in progress.
func resizing(claim *corev1.PersistentVolumeClaim) bool {
	return statusOf(claim) != "" || wantedOf(claim) > capacityOf(claim)
}

// journalOf is the journal of the volume's record, empty if there is none.
func journalOf(v *View) tarnv1.PavVolumeExpansion {
	if v.Record == nil || v.Record.Status.Expansion == nil {
		return tarnv1.PavVolumeExpansion{}
	}
	return *v.Record.Status.Expansion
}

// sizeOf is the size of the storage in bytes. The caches of record and volume may differ. Neither
// size ever shrinks, so the larger one is right.
func sizeOf(v *View) int64 {
	size := quantityOf(v.Volume.Spec.Capacity)
	if v.Record != nil {
		size = max(size, v.Record.Status.Capacity)
	}
	return size
}

// quantityOf is a size in whole bytes, rounded up, so that a request always fits.
func quantityOf(list corev1.ResourceList) int64 {
	return volume.Bytes(list[corev1.ResourceStorage])
}

func wantedOf(claim *corev1.PersistentVolumeClaim) int64 {
	if claim == nil {
		return 0
	}
	return quantityOf(claim.Spec.Resources.Requests)
}

func capacityOf(claim *corev1.PersistentVolumeClaim) int64 { return quantityOf(claim.Status.Capacity) }

func allocatedOf(claim *corev1.PersistentVolumeClaim) int64 {
	return quantityOf(claim.Status.AllocatedResources)
}

func statusOf(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	if claim == nil {
		return ""
	}
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// started is the claim while the controller works on a resize to bytes. If again is set, it is the
// same resize as before, and the claim keeps its earlier error.
func started(old *corev1.PersistentVolumeClaim, driver string, bytes int64, again bool, now time.Time) *corev1.PersistentVolumeClaim {
	claim := old.DeepCopy()
	drop := slices.Clone(resizeConditions[1:])
	if again {
		drop = slices.DeleteFunc(drop, func(t corev1.PersistentVolumeClaimConditionType) bool {
			return t == corev1.PersistentVolumeClaimControllerResizeError
		})
	}
	remove(claim, drop...)
	say(claim, corev1.PersistentVolumeClaimResizing, "", "", now)
	if !again || statusOf(claim) != corev1.PersistentVolumeClaimControllerResizeInfeasible {
		setStatus(claim, corev1.PersistentVolumeClaimControllerResizeInProgress)
	}
	allocate(claim, bytes)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annResizer, driver)
	return claim
}

// waiting is the claim while its expansion pod is in progress, with what the pod waits for.
func waiting(old *corev1.PersistentVolumeClaim, o steppod.Observation, now time.Time) *corev1.PersistentVolumeClaim {
	if !o.Waits() {
		o.Message = ""
	}
	if waitedFor(old) == kube.Message(o.Message) {
		return old
	}
	claim := old.DeepCopy()
	say(claim, corev1.PersistentVolumeClaimResizing, "", kube.Message(o.Message), now)
	return claim
}

// waitedFor is what the expansion pod was last seen to wait for, empty if that was nothing unusual.
func waitedFor(claim *corev1.PersistentVolumeClaim) string {
	if claim == nil {
		return ""
	}
	for _, c := range claim.Status.Conditions {
		if c.Type == corev1.PersistentVolumeClaimResizing {
			return c.Message
		}
	}
	return ""
}

// rejected is the claim after a failed attempt. The resize is infeasible if the next attempt would
// fail the same way until something is changed.
func rejected(old *corev1.PersistentVolumeClaim, err *steppod.StepError, now time.Time) *corev1.PersistentVolumeClaim {
	claim := old.DeepCopy()
	say(claim, corev1.PersistentVolumeClaimControllerResizeError, err.Reason, err.Message, now)
	switch err.Reason {
	case reasonNotExpandable, steppod.ReasonInvalid, steppod.ReasonTemplate, steppod.ReasonRefused, steppod.ReasonPodRefused:
		setStatus(claim, corev1.PersistentVolumeClaimControllerResizeInfeasible)
	default:
		if statusOf(claim) != "" {
			setStatus(claim, corev1.PersistentVolumeClaimControllerResizeInProgress)
		}
	}
	return claim
}

// pending is the claim of a volume whose storage has grown and whose nodes must follow. The kubelet
// reads the target size from allocatedResources.
func pending(old *corev1.PersistentVolumeClaim, bytes int64, now time.Time) *corev1.PersistentVolumeClaim {
	claim := old.DeepCopy()
	remove(claim, resizeConditions...)
	say(claim, corev1.PersistentVolumeClaimFileSystemResizePending, "",
		"The volume has grown; its file system grows next, on each node that uses it or on the first node that runs a pod with it.", now)
	setStatus(claim, corev1.PersistentVolumeClaimNodeResizePending)
	allocate(claim, bytes)
	delete(claim.Annotations, annNoNodeResizes)
	return claim
}

// finished is the claim of a volume that has grown and needs no work on a node.
func finished(old *corev1.PersistentVolumeClaim, bytes int64) *corev1.PersistentVolumeClaim {
	claim := old.DeepCopy()
	remove(claim, resizeConditions...)
	delete(claim.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	allocate(claim, bytes)
	claim.Status.Capacity[corev1.ResourceStorage] = claim.Status.AllocatedResources[corev1.ResourceStorage]
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annNoNodeResizes, "true")
	return claim
}

func allocate(claim *corev1.PersistentVolumeClaim, bytes int64) {
	if claim.Status.AllocatedResources == nil {
		claim.Status.AllocatedResources = corev1.ResourceList{}
	}
	claim.Status.AllocatedResources[corev1.ResourceStorage] = quantity(bytes)
}

func quantity(bytes int64) resource.Quantity { return *resource.NewQuantity(bytes, resource.BinarySI) }

func setStatus(claim *corev1.PersistentVolumeClaim, status corev1.ClaimResourceStatus) {
	if claim.Status.AllocatedResourceStatuses == nil {
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = status
}

func remove(claim *corev1.PersistentVolumeClaim, types ...corev1.PersistentVolumeClaimConditionType) {
	claim.Status.Conditions = slices.DeleteFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(types, c.Type)
	})
}

// say sets a condition to True. Its time is that of its change to True.
func say(claim *corev1.PersistentVolumeClaim, which corev1.PersistentVolumeClaimConditionType, reason, message string, now time.Time) {
	c := corev1.PersistentVolumeClaimCondition{
		Type: which, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: message,
	}
	i := slices.IndexFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool { return c.Type == which })
	if i < 0 {
		claim.Status.Conditions = append(claim.Status.Conditions, c)
		return
	}
	if claim.Status.Conditions[i].Status == corev1.ConditionTrue {
		c.LastTransitionTime = claim.Status.Conditions[i].LastTransitionTime
	}
	claim.Status.Conditions[i] = c
}
