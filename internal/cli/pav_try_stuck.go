package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// failedMount is the reason of the kubelet's Event for a volume that it cannot mount. No field of
// the pod says so.
const failedMount = "FailedMount"

// hopeless are the kubelet's reasons for a waiting container that a test will not resolve.
var hopeless = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
}

// stuck returns an error for a pod of the test that cannot start, nil if there is none.
func (w *tryWorld) stuck(ctx context.Context) error {
	pods := &corev1.PodList{}
	if w.ending || w.cached.List(ctx, pods) != nil {
		return nil
	}
	steps := &steppod.Steps{EventsOf: steppod.LiveEvents(w.live)}
	for i := range pods.Items {
		if why := neverStarts(ctx, steps, &pods.Items[i], time.Now()); why != "" {
			return fmt.Errorf("pod %s/%s cannot start: %s", pods.Items[i].Namespace, pods.Items[i].Name, why)
		}
	}
	return nil
}

// neverStarts says why a pod cannot start, empty if it may. A failed mount counts only for the pod
// of a step, and only after its first seconds. For a consumer, mounts fail until the volume is
// staged.
func neverStarts(ctx context.Context, steps *steppod.Steps, pod *corev1.Pod, now time.Time) string {
	if pod.DeletionTimestamp != nil {
		return ""
	}
	if kind, why := steppod.Waiting(pod); kind != "" {
		if slices.Contains(hopeless, kind) {
			return why
		}
		return ""
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || pod.Labels[tarnv1.LabelStep] == "" {
		return ""
	}
	o := steppod.Observe(pod, owner.UID, now)
	if o.State != steppod.PodStarting || o.Message != "" {
		return ""
	}
	if o, err := steps.Unmounted(ctx, pod, o, now); err == nil {
		return o.Message
	}
	return ""
}
