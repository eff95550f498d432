package volume

import (
	corev1 "k8s.io/api/core/v1"
)

// ClaimsOfPod gives the names of the claims that a pod's volumes are taken from, in
// the order of the volumes and each once: those it names, and the computed names
// POD-VOLUME of its ephemeral ones. All are in the pod's namespace. That a claim of a
// computed name exists does not mean that it is the pod's: its controller tells.
func ClaimsOfPod(pod *corev1.Pod) []string {
	var names []string
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		if name := claimOfSource(pod, &pod.Spec.Volumes[i]); name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// EphemeralClaim is the name of the claim behind a pod's ephemeral volume.
func EphemeralClaim(pod, volume string) string { return pod + "-" + volume }

func claimOfSource(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return EphemeralClaim(pod.Name, v.Name)
	}
	return ""
}
