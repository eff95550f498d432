package steppod

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	// deadlineSlack is what the kubelet gets beyond a pod's own deadline before
	// its failure is declared here: where nobody answers on the node, or the pod
	// has none.
	deadlineSlack = 15 * time.Second
	// unstartedSlack is what the kubelet gets for a pod whose containers it has not started.
	// It waits for the volumes of a pod for about two minutes at a time, and looks at the
	// deadline only in between.
	unstartedSlack = 3 * time.Minute
	// deadlineExceeded is the kubelet's reason for the end of a pod at its deadline.
	deadlineExceeded = "DeadlineExceeded"
	// containerStatusUnknown is the kubelet's reason for a container it does not find
	// as the pod ends, which is any that never ran. What it waited for is overwritten.
	containerStatusUnknown = "ContainerStatusUnknown"
)

// limitOf is the time a pod has by itself.
func limitOf(pod *corev1.Pod) time.Duration {
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return defaultDeadlineSeconds * time.Second
}

// deadlineOf is when a pod's time is up. As the kubelet does, it counts from the start;
// a pod that never starts has as long.
func deadlineOf(pod *corev1.Pod) time.Time {
	begin := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		begin = pod.Status.StartTime.Time
	}
	return begin.Add(limitOf(pod))
}

// endedByDeadline says whether a pod that failed was ended because its time was up. The
// node agent's word that it failed comes before the kubelet's, which has the reason.
func endedByDeadline(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return pod.Status.Reason == deadlineExceeded
	}
	return pod.Spec.ActiveDeadlineSeconds != nil && !now.Before(deadlineOf(pod))
}

// timeIsUp is a failure for the deadline, with what kept the pod, if that is known.
func timeIsUp(o *Observation, pod *corev1.Pod, kept string) {
	o.late(pod, fmt.Sprintf("pod %s/%s has not ended within %s", pod.Namespace, pod.Name, limitOf(pod)), kept)
}

// late makes it a failure for a deadline.
func (o *Observation) late(pod *corev1.Pod, message, kept string) {
	o.State, o.Reason, o.CheckAt, o.unexplained = PodFailed, ReasonPodDeadline, time.Time{}, kept == ""
	o.Message = message
	switch {
	case kept != "":
		o.Message += ": " + kept
	case !wasSeenToRun(pod):
		o.elsewhere = fmt.Sprintf("; its containers were never seen running; its Events may say why: kubectl -n %s describe pod %s", pod.Namespace, pod.Name)
	}
}

// wasSeenToRun says whether a container of the pod runs or has run.
func wasSeenToRun(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		ended := s.State.Terminated
		return s.State.Running != nil || s.LastTerminationState.Terminated != nil || ended != nil && ended.Reason != containerStatusUnknown
	})
}

// NeverRan says whether the kubelet has ended a pod before the container runtime made a
// container of it: its image or its Secret was missing. Before the kubelet says that the pod
// has ended, a container may have started that no status tells of. A phase that Kubernetes'
// garbage collection of pods has written tells nothing.
func NeverRan(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || Disruption(pod) != "" && !stoppedByKubelet(pod) || len(pod.Status.ContainerStatuses) != len(pod.Spec.Containers) {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		ended := s.State.Terminated
		return s.ContainerID != "" || s.RestartCount > 0 || s.State.Running != nil || s.LastTerminationState.Terminated != nil ||
			ended != nil && (ended.Reason != containerStatusUnknown || ended.ContainerID != "" || !ended.StartedAt.IsZero())
	})
}

// UnstartedUntil is until when a pod that has failed for its deadline is worth waiting for:
// the kubelet has accepted it, has started no container, and is about to say that none ran.
// It is zero where there is nothing to wait for.
func UnstartedUntil(pod *corev1.Pod, now time.Time) time.Time {
	until := deadlineOf(pod).Add(unstartedSlack)
	if Ended(pod) || pod.Spec.NodeName == "" || pod.Status.StartTime == nil || hasStarted(pod) || !now.Before(until) {
		return time.Time{}
	}
	return until
}

// keptBy says what is known of why a pod did not end in its time.
func keptBy(pod *corev1.Pod, result *tarnv1.PodResult) string {
	if result != nil && result.Error != "" {
		return result.Error
	}
	return cmp.Or(waitingFor(pod), exits(pod, result, containerStatusUnknown))
}

// Waits says whether the pod goes on, and waits for something out of the ordinary before
// a container of it can run. Who observes a pod keeps the message, and gives it to After.
func (o Observation) Waits() bool {
	return o.Message != "" && (o.State == PodStarting || o.State == PodRunning)
}

// After explains a pod whose time was up by what it was last seen to wait for: of a
// container that never ran, the kubelet overwrites that as it ends the pod. Every step
// asks this of its pod, so that each deadline is told with its cause.
func (o Observation) After(waited string) Observation {
	switch {
	case !o.unexplained:
		return o
	case waited != "":
		o.Message += ": " + waited
	default:
		o.Message += o.elsewhere
	}
	o.unexplained = false
	return o
}

// BeforeReady is what is observed of a staging pod whose volume is not there yet, and which
// was started at a time. The first container that fails ends the attempt, whatever the pod's
// restartPolicy: started again, it would find in /pav what its first run has left there, and
// fail for that. The pod has 10 minutes, or what volumeStaging.deadlineSeconds says; its own
// activeDeadlineSeconds, if any, is about the whole of its life.
func (o Observation) BeforeReady(pod *corev1.Pod, started *metav1.Time, now time.Time) Observation {
	if o.State != PodStarting && o.State != PodRunning {
		return o
	}
	if why := firstFailure(pod); why != "" {
		o.State, o.Reason, o.Message, o.CheckAt = PodFailed, ReasonPodFailed, why, time.Time{}
		return o
	}
	if started == nil {
		return o
	}
	limit := time.Duration(cmp.Or(o.Inputs.DeadlineSeconds, defaultDeadlineSeconds)) * time.Second
	end := started.Add(limit)
	if now.Before(end) {
		if o.CheckAt.IsZero() || end.Before(o.CheckAt) {
			o.CheckAt = end
		}
		return o
	}
	o.late(pod, fmt.Sprintf("staging pod %s/%s has not made the volume available within %s; to allow more time, raise volumeStaging.deadlineSeconds", pod.Namespace, pod.Name, limit), o.Message)
	return o
}

// firstFailure says which container of a pod that goes on has failed first, empty for none.
func firstFailure(pod *corev1.Pod) string {
	var first *corev1.ContainerStateTerminated
	var of corev1.ContainerStatus
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, end := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			if end != nil && end.ExitCode != 0 && (first == nil || end.FinishedAt.Before(&first.FinishedAt)) {
				first, of = end, s
			}
		}
	}
	if first == nil {
		return ""
	}
	text := exit(of.Name, first)
	if of.RestartCount > 1 || of.RestartCount == 1 && of.LastTerminationState.Terminated != first {
		text += fmt.Sprintf("; it ran, ended with 0 and was restarted, because the pod's restartPolicy is %s: "+
			"with Never, its end means that the volume is staged", cmp.Or(pod.Spec.RestartPolicy, corev1.RestartPolicyAlways))
	}
	return text
}
