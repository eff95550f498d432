package apps

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/kube"
)

const (
	// crashing is the kubelet's reason for a container that ends repeatedly.
	crashing = "CrashLoopBackOff"
	// unstarted is the runtime's reason for a container that ended before it began.
	unstarted = "StartError"
	// lastLines and lastBytes bound the reported end of a container's output.
	lastLines, lastBytes = 10, 1000
)

// unpullable and unstartable are the kubelet's reasons for a container without its image, and
// for one that cannot be created or run.
var (
	unpullable  = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"}
	unstartable = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)

// failureOf says why a pod of an App does not run and will not run by waiting; empty if no
// cause is known. The kubelet retries all the same.
func failureOf(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		waits, end := pod.Status.ContainerStatuses[i].State.Waiting, pod.Status.ContainerStatuses[i].LastTerminationState.Terminated
		switch {
		case waits == nil:
		case waits.Reason == crashing && end != nil && end.Reason == unstarted:
			return fmt.Sprintf("the container of pod %s cannot be started: %s", pod.Name, end.Message)
		case waits.Reason == crashing:
			return fmt.Sprintf("pod %s keeps ending%s", pod.Name, lastEnd(end))
		case slices.Contains(unpullable, waits.Reason):
			return fmt.Sprintf("the image of pod %s cannot be pulled: %s", pod.Name, cmp.Or(waits.Message, waits.Reason))
		case slices.Contains(unstartable, waits.Reason):
			return fmt.Sprintf("the container of pod %s cannot be started: %s", pod.Name, cmp.Or(waits.Message, waits.Reason))
		}
	}
	return ""
}

// lastEnd says how a container ended, and the end of its output if it failed.
func lastEnd(end *corev1.ContainerStateTerminated) string {
	if end == nil {
		return ""
	}
	how := fmt.Sprintf(", with exit code %d", end.ExitCode)
	switch {
	case end.ExitCode == 0:
		how += ": an app must keep running"
	case end.Reason != "" && end.Reason != "Error":
		how += " (" + end.Reason + ")"
	}
	if printed := tail(end.Message); printed != "" {
		how += appplan.LastWords + printed
	}
	return how
}

// tail is the end of a text, in whole lines if possible.
func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-lastLines):]
	for len(lines) > 1 && len(strings.Join(lines, "\n")) > lastBytes {
		lines = lines[1:]
	}
	return kube.Cut(strings.Join(lines, "\n"), lastBytes)
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// gatherPods reads the App's pods from the cache. The cache is enough, because the pods are
// only reported and cause no action.
func (r *reconciler) gatherPods(ctx context.Context, v *View) error {
	if r.pods == nil {
		return nil
	}
	list := &corev1.PodList{}
	if err := r.pods.List(ctx, list, client.InNamespace(v.App.Namespace), client.MatchingLabels(labelsOf(v.App))); err != nil {
		return fmt.Errorf("listing the pods of App %s/%s: %w", v.App.Namespace, v.App.Name, err)
	}
	for i := range list.Items {
		v.Pods = append(v.Pods, &list.Items[i])
	}
	slices.SortFunc(v.Pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// failure says why pods of the present deploy do not run; empty if no cause is known. Pods of
// an earlier deploy do not count, because they are being replaced.
func (v *View) failure() string {
	for _, pod := range v.Pods {
		if pod.DeletionTimestamp != nil || pod.Labels[tarnv1.LabelDeployed] != v.Deployment.Spec.Template.Labels[tarnv1.LabelDeployed] {
			continue
		}
		if why := failureOf(pod); why != "" {
			return why
		}
	}
	return ""
}

// failing passes a pod of an App when it begins to fail, fails in another way, or recovers.
func failing() predicate.TypedPredicate[*corev1.Pod] {
	ofApp := func(pod *corev1.Pod) bool { return pod.Labels[tarnv1.LabelApp] != "" }
	return predicate.TypedFuncs[*corev1.Pod]{
		CreateFunc: func(e event.TypedCreateEvent[*corev1.Pod]) bool { return ofApp(e.Object) && failureOf(e.Object) != "" },
		DeleteFunc: func(e event.TypedDeleteEvent[*corev1.Pod]) bool { return ofApp(e.Object) && failureOf(e.Object) != "" },
		UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Pod]) bool {
			return ofApp(e.ObjectNew) && failureOf(e.ObjectOld) != failureOf(e.ObjectNew)
		},
	}
}
