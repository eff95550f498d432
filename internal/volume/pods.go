package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClaimsOfPod gives the names of the claims behind a pod's volumes, in the order of the volumes and
// each once. These are the claims that the pod names, and the computed names POD-VOLUME of its
// ephemeral volumes. All are in the pod's namespace.
//
// A claim with a computed name need not belong to the pod: check its controller.
func ClaimsOfPod(pod *corev1.Pod) []string {
	var names []string
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		if name := ClaimOf(pod, &pod.Spec.Volumes[i]); name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// EphemeralClaim is the name of the claim behind a pod's ephemeral volume.
func EphemeralClaim(pod, volume string) string { return pod + "-" + volume }

// ClaimOf is the name of the claim behind a pod's volume; empty if the volume is not a claim.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return EphemeralClaim(pod.Name, v.Name)
	}
	return ""
}

// Uses says whether a pod uses a claim: the pod has a node, and one of its volumes is the claim.
// The pod counts until its object is deleted, even when all its containers have ended. Until then
// the kubelet may have the volume mounted, so the claim must not be deleted. Package protect is
// more exact where it can tell that nothing is mounted.
//
// A claim that a pod owns is the exception: it is deleted before the pod's object, once the pod is
// shut down. Otherwise the two could keep each other for ever.
func Uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" || pod.Namespace != claim.Namespace {
		return false
	}
	owned := !ShutDown(pod) && metav1.IsControlledBy(claim, pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if ClaimOf(pod, v) == claim.Name && (v.Ephemeral == nil || owned) {
			return true
		}
	}
	return false
}

// UsesFormer says whether a running pod may use a volume through the name of a claim that the
// volume had before. If a new claim has that name, only pods that had a node before it can mean the
// former claim.
//
// Times are to the second. A pod that got its node in the second in which the new claim was created
// uses the new claim, as when both are deployed together. Unless it is forced, a claim is deleted
// only when no pod with a node uses it.
func UsesFormer(pod *corev1.Pod, claim string, successor *corev1.PersistentVolumeClaim) bool {
	if Ended(pod) || !slices.Contains(ClaimsOfPod(pod), claim) {
		return false
	}
	if successor == nil {
		return true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Before(&successor.CreationTimestamp)
		}
	}
	return pod.Spec.NodeName != "" && !pod.CreationTimestamp.After(successor.CreationTimestamp.Time)
}

// ShutDown says whether the kubelet is done with a pod: it was deleted, and its grace period is
// over.
func ShutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// Ended says whether no container of a pod runs or will run again: the pod has succeeded or failed,
// or it is being deleted and all containers have stopped.
func Ended(pod *corev1.Pod) bool {
	s := &pod.Status
	return s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && stopped(s.InitContainerStatuses) && stopped(s.ContainerStatuses) && stopped(s.EphemeralContainerStatuses)
}

// Started says whether a container of a pod runs or has run, even before the last start of its
// node. The pod has then had its volumes.
func Started(pod *corev1.Pod) bool {
	s := &pod.Status
	return s.Phase != "" && s.Phase != corev1.PodPending || ran(s.InitContainerStatuses) || ran(s.ContainerStatuses)
}

// Running says whether a container of a pod runs.
func Running(pod *corev1.Pod) bool {
	s := &pod.Status
	return slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses),
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

func ran(statuses []corev1.ContainerStatus) bool {
	for i := range statuses {
		c := &statuses[i]
		if c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil || c.RestartCount > 0 {
			return true
		}
	}
	return false
}

func stopped(statuses []corev1.ContainerStatus) bool {
	for i := range statuses {
		if state := &statuses[i].State; state.Terminated == nil && state.Waiting == nil {
			return false
		}
	}
	return true
}
