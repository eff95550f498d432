package protect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestPodsThatMayHaveFreedAClaimAreNoticed(t *testing.T) {
	running := podWith("p", "x")
	stopping := with(running, func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.Unix(1, 0)), ptr.To[int64](30)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	})
	stopped := with(stopping, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	})
	failed := with(running, inPhase(corev1.PodFailed))
	pending := with(running, unscheduled)
	replaced := with(running, func(p *corev1.Pod) { p.UID = "new" })
	plain := podWith("p")
	for _, c := range []struct {
		name         string
		old, current *corev1.Pod
		want         bool
	}{
		{"a new running pod", nil, &running, false},
		{"a running pod that changes", &running, &running, false},
		{"a pod that begins to stop", &running, &stopping, false},
		{"a pod whose containers have stopped", &stopping, &stopped, true},
		{"a pod that has failed", &running, &failed, true},
		{"a new pod that no node has", nil, &pending, true},
		{"case 149: a pod that is gone", &running, nil, true},
		{"case 149: a pod that was replaced by one of its name", &running, &replaced, true},
		{"a pod without claims that is gone", &plain, nil, false},
		{"a pod without claims that replaces one with", &running, ptr.To(with(plain, func(p *corev1.Pod) { p.UID = "new" })), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := change{}
			if c.old != nil {
				e.old = c.old
			}
			if c.current != nil {
				e.current = c.current
			}
			if got := freeing(e); got != c.want {
				t.Errorf("freeing = %t, want %t", got, c.want)
			}
		})
	}
}
