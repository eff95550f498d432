package steppod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

const (
	// deadlineSlack is what the kubelet gets beyond a pod's own deadline before Tarn declares the
	// failure. It is for nodes that do not answer, and for pods without a deadline.
	deadlineSlack = 15 * time.Second
	// unstartedSlack is what the kubelet gets for a pod whose containers it has not started. The
	// kubelet waits about two minutes at a time for the volumes of a pod, and checks the deadline
	// only in between.
	unstartedSlack = 3 * time.Minute
	// deadlineExceeded is the kubelet's reason for the end of a pod at its deadline.
	deadlineExceeded = "DeadlineExceeded"
	// containerStatusUnknown is the kubelet's reason for a container that it does not find when the
	// pod ends, like any that never ran. It overwrites what the container waited for.
	containerStatusUnknown = "ContainerStatusUnknown"
)

// limitOf is the pod's own time limit.
func limitOf(pod *corev1.Pod) time.Duration {
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return defaultDeadlineSeconds * time.Second
}

// deadlineOf is the pod's deadline. Like the kubelet, it counts from the pod's start. For a pod
// that never starts it counts from its creation.
func deadlineOf(pod *corev1.Pod) time.Time {
	begin := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		begin = pod.Status.StartTime.Add(behind(pod))
	}
	return begin.Add(limitOf(pod))
}

// behind is by how much the clock of the pod's node is seen to be behind the API server's: a
// kubelet starts a pod after it was scheduled. A clock that is ahead cannot be told from a late
// start. It makes deadlines longer, and a pod that ended before its deletion look stopped.
func behind(pod *corev1.Pod) time.Duration {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && pod.Status.StartTime != nil {
			return max(0, c.LastTransitionTime.Sub(pod.Status.StartTime.Time))
		}
	}
	return 0
}

// endedByDeadline says whether a failed pod was ended at its deadline. The node agent may report
// the failure before the kubelet, which gives the reason.
func endedByDeadline(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return pod.Status.Reason == deadlineExceeded
	}
	return pod.Spec.ActiveDeadlineSeconds != nil && !now.Before(deadlineOf(pod))
}

// missDeadline records a failure for the deadline, with the cause if known.
func missDeadline(o *Observation, pod *corev1.Pod, kept string) {
	o.late(pod, fmt.Sprintf("pod %s/%s has not ended within %s", pod.Namespace, pod.Name, limitOf(pod)), kept)
}

// late records a failure for a deadline.
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

// NeverRan says whether the kubelet has ended a pod before the container runtime created a
// container, for example because an image or a Secret was missing.
//
// It is false until the kubelet reports the end: until then a container may have started that no
// status shows. It is also false for a phase written by Kubernetes' garbage collection of pods,
// which proves nothing.
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

// UnstartedUntil is how long to wait for the end of a pod that has failed for its deadline. It is
// nonzero if the kubelet has accepted the pod, has started no container, and will soon report that
// none ran. It is zero if nothing is worth waiting for.
func UnstartedUntil(pod *corev1.Pod, now time.Time) time.Time {
	until := deadlineOf(pod).Add(unstartedSlack)
	if Ended(pod) || pod.Spec.NodeName == "" || pod.Status.StartTime == nil || hasStarted(pod) || !now.Before(until) {
		return time.Time{}
	}
	return until
}

// delayedBy says, if known, why a pod did not end before its deadline.
func delayedBy(pod *corev1.Pod, result *tarnv1.PodResult) string {
	if result != nil && result.Error != "" {
		return result.Error
	}
	return cmp.Or(waitingFor(pod), exits(pod, result, containerStatusUnknown))
}

// Waits says whether the pod continues and something unusual keeps a container from running. The
// caller keeps the message, and passes it to After.
func (o Observation) Waits() bool {
	return o.Message != "" && (o.State == PodStarting || o.State == PodRunning)
}

// After adds to a missed deadline what the pod was last seen to wait for. When the kubelet ends a
// pod, it overwrites that for containers that never ran. Every step calls After for its pod, so
// that each missed deadline names its cause.
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

// BeforeReady is the observation of a staging pod whose volume is not available yet; started is the
// time of its start.
//
// The first container that fails ends the attempt, whatever the pod's restartPolicy. A restarted
// container would find in /pav what its first run left there, and fail because of it. The pod has
// 10 minutes, or volumeStaging.deadlineSeconds. Its own activeDeadlineSeconds, if any, limits its
// whole life.
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

// firstFailure says which container of a running pod has failed first; empty if none has.
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

const (
	// firstUnmounted is how long a pod with a node may be without a container before its Events are
	// read. The usual start takes less.
	firstUnmounted = 5 * time.Second
	// nextUnmounted is the pause between two reads of the Events until they name a cause, and
	// laterUnmounted from then on. A pod that starts has an event of its own.
	nextUnmounted  = 5 * time.Second
	laterUnmounted = 20 * time.Second
)

// mountReasons are the reasons of the Events in which the kubelet says that it cannot prepare a
// pod.
var mountReasons = []string{"FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox"}

// startReasons are the reasons of the Events that follow once the pod has its volumes.
var startReasons = []string{"Pulling", "Pulled", "Created", "Started"}

// +kubebuilder:rbac:groups="",resources=events,verbs=list

// Unmounted adds to an observation what only the kubelet's Events show: that a pod does not start
// because a Secret, ConfigMap or volume is missing.
func (s *Steps) Unmounted(ctx context.Context, pod *corev1.Pod, o Observation, now time.Time) (Observation, error) {
	if s.EventsOf == nil || pod == nil || o.State != PodStarting || o.Message != "" || pod.Spec.NodeName == "" {
		return o, nil
	}
	begin := pod.CreationTimestamp.Add(firstUnmounted)
	if now.Before(begin) {
		o.CheckAt = kube.Sooner(o.CheckAt, begin)
		return o, nil
	}
	events, err := s.EventsOf(ctx, pod)
	if err != nil {
		return o, err
	}
	var last *corev1.Event
	for i := range events {
		e := &events[i]
		if slices.Contains(slices.Concat(mountReasons, startReasons), e.Reason) && (last == nil || lastSeen(e).After(lastSeen(last))) {
			last = e
		}
	}
	pause := nextUnmounted
	if last != nil && slices.Contains(mountReasons, last.Reason) {
		pause = laterUnmounted
		o.Message, o.waits = last.Reason+": "+last.Message, last.Reason
	}
	o.CheckAt = kube.Sooner(o.CheckAt, now.Add(pause))
	return o, nil
}

func lastSeen(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.EventTime.After(at) {
		at = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}

// LiveEvents gives an EventsOf that asks the API server.
func LiveEvents(live client.Reader) func(context.Context, client.Object) ([]corev1.Event, error) {
	return func(ctx context.Context, about client.Object) ([]corev1.Event, error) {
		var list corev1.EventList
		if err := live.List(ctx, &list, client.InNamespace(about.GetNamespace()), client.MatchingFields{"involvedObject.uid": string(about.GetUID())}); err != nil {
			return nil, fmt.Errorf("listing the Events of %T %s/%s: %w", about, about.GetNamespace(), about.GetName(), err)
		}
		return list.Items, nil
	}
}

// WaitEvent gives the action and the note of the Event that tells a claim what keeps the pod of a
// step from starting. Both are empty if nothing does. The action names the kind of cause. Events
// with the same action are merged into one, as for the kubelet's two reasons for a missing image.
func (o Observation) WaitEvent(pod *corev1.Pod) (action, note string) {
	if !o.Waits() || pod == nil {
		return "", ""
	}
	return "Wait" + o.waits, fmt.Sprintf("pod %s/%s waits: %s", pod.Namespace, pod.Name, o.Message)
}

// EventPodWaiting: a pod of a step cannot start. The message says what it waits for; correct that.
const EventPodWaiting = "PodWaiting"
