package steppod

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

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
func LiveEvents(live client.Reader) func(context.Context, *corev1.Pod) ([]corev1.Event, error) {
	return func(ctx context.Context, pod *corev1.Pod) ([]corev1.Event, error) {
		var list corev1.EventList
		if err := live.List(ctx, &list, client.InNamespace(pod.Namespace), client.MatchingFields{"involvedObject.uid": string(pod.UID)}); err != nil {
			return nil, fmt.Errorf("listing the Events of pod %s/%s: %w", pod.Namespace, pod.Name, err)
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
