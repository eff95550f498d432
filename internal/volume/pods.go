package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClaimsOfPod gives the names of the claims that a pod's volumes are taken from, in
// the order of the volumes and each once: those it names, and the computed names
// POD-VOLUME of its ephemeral ones. All are in the pod's namespace. That a claim of a
// computed name exists does not mean that it is the pod's: its controller tells.
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

// ClaimOf is the name of the claim that a pod's volume is taken from, empty where it is none.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return EphemeralClaim(pod.Name, v.Name)
	}
	return ""
}

// Uses says whether a claim is in use by a pod: it was given to a node, and one of its
// volumes is the claim. It counts until the pod's object is gone, also when all its
// containers have ended: what the kubelet has yet to unmount, nobody may delete. Package
// protect knows better where it can tell that nothing is mounted. Only
// the claim that a pod owns goes before it, once the pod is shut down; else the two
// could keep each other for ever.
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

// UsesFormer says whether a pod that has not ended may use a volume by the name of a
// claim which the volume had before. Where a claim of that name is there again, only pods
// that had a node before it can have meant the former. Times are to the second. A pod
// that got its node in the second of the new claim, as what is deployed together does,
// has that one: but by force, a claim goes only when no pod with a node uses it.
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

// ShutDown says that the kubelet has nothing of a pod left: it was deleted, and its
// grace is over.
func ShutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// Ended says that no container of a pod runs or will run again: the pod has succeeded
// or failed, or it is being deleted and all have stopped.
func Ended(pod *corev1.Pod) bool {
	s := &pod.Status
	return s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && stopped(s.InitContainerStatuses) && stopped(s.ContainerStatuses) && stopped(s.EphemeralContainerStatuses)
}

// Started says that a container of a pod runs or has run, also before its node was last
// started: the pod had its volumes once.
func Started(pod *corev1.Pod) bool {
	s := &pod.Status
	return s.Phase != "" && s.Phase != corev1.PodPending || ran(s.InitContainerStatuses) || ran(s.ContainerStatuses)
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
