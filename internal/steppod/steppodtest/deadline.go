package steppodtest

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// NoImage is what a CannotPull pod waits for.
const NoImage = "container main: ImagePullBackOff: no such image"

// CannotPull shows a pod as its kubelet does while an image cannot be pulled.
func CannotPull(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
	}}}
	return pod
}

// TimeIsUp gives the pod as the kubelet and the node agent show it after its deadline: what it
// waited for is no longer visible.
func TimeIsUp(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](5)
	pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "DeadlineExceeded"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated"},
	}}}
	result, _ := json.Marshal(tarnv1.PodResult{Succeeded: ptr.To(false)}) // of plain fields
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, tarnv1.AnnotationResult, string(result))
	return pod
}
