package steppod_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

func TestWhatOnlyItsEventsTellKeepsAPodIsObserved(t *testing.T) {
	at := func(reason string, after time.Duration) corev1.Event {
		return corev1.Event{Reason: reason, Message: `secret "keys" not found`, LastTimestamp: metav1.NewTime(born.Add(after))}
	}
	onNode := func(pod *corev1.Pod) { pod.Spec.NodeName = "n" }
	stuck := container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}})
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		after  time.Duration
		events []corev1.Event
		// wantNote must be in the Event that the claim gets, wantAction is its action; empty for
		// none.
		wantNote, wantAction string
		// wantNext is the time of the next check, after the pod's creation.
		wantNext time.Duration
	}{
		{"not at once", podOf(tarnv1.StepCreation, onNode), time.Second, []corev1.Event{at("FailedMount", 0)}, "", "", 5 * time.Second},
		{"after five seconds", podOf(tarnv1.StepCreation, onNode), 5 * time.Second, []corev1.Event{at("FailedMount", 0)}, `pod ns/p waits: FailedMount: secret "keys" not found`, "WaitFailedMount", 25 * time.Second},
		{"nothing yet", podOf(tarnv1.StepCreation, onNode), 5 * time.Second, nil, "", "", 10 * time.Second},
		{"not what has passed", podOf(tarnv1.StepCreation, onNode), 5 * time.Second, []corev1.Event{at("Pulling", 2), at("FailedMount", 1)}, "", "", 10 * time.Second},
		{"its status tells more", podOf(tarnv1.StepCreation, onNode, stuck), 5 * time.Second, []corev1.Event{at("FailedMount", 0)}, "ErrImagePull: no such image", "WaitImagePullBackOff", 0},
		{"not of one that runs", podOf(tarnv1.StepCreation, onNode, container(running)), time.Minute, []corev1.Event{at("FailedMount", 0)}, "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := born.Add(c.after)
			steps := &steppod.Steps{EventsOf: func(context.Context, *corev1.Pod) ([]corev1.Event, error) { return c.events, nil }}
			got, err := steps.Unmounted(t.Context(), c.pod, steppod.Observe(c.pod, "owner", now), now)
			if err != nil {
				t.Fatal(err)
			}
			action, note := got.WaitEvent(c.pod)
			if action != c.wantAction || (note == "") != (c.wantNote == "") || !strings.Contains(note, c.wantNote) {
				t.Errorf("the Event is %s %q, want %s %q", action, note, c.wantAction, c.wantNote)
			}
			if c.wantNext > 0 && !got.CheckAt.Equal(born.Add(c.wantNext)) {
				t.Errorf("it is looked at again at %v, want %v after its creation", got.CheckAt, c.wantNext)
			}
		})
	}
}
