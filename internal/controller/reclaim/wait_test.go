package reclaim

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/podvol"
	"tarn.dev/tarn/internal/podvol/podvoltest"
)

func TestADeletionPodThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	v := viewOf(tarnv1.VolumeDeleting, func(v *View) { v.Record.Status = *begun(v.Record, 1, "ns") })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", CreationTimestamp: metav1.NewTime(now), OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
	}}
	look := func(pod *corev1.Pod) Plan {
		v.Pod, v.Observed = pod, podvol.Observe(pod, v.Record.UID, now.Add(time.Second))
		p := decide(v, now.Add(time.Second))
		if p.Status != nil {
			v.Record.Status = *p.Status
		}
		return p
	}
	deletable := func() *metav1.Condition {
		return meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
	}
	look(podvoltest.CannotPull(pod))
	if c := deletable(); c.Reason != reasonPodWaits || c.Message != podvoltest.NoImage {
		t.Fatalf("while it waits, the record says %+v", c)
	}
	waits := v.Record.DeepCopy()

	p := look(podvoltest.TimeIsUp(pod))
	for _, told := range []string{p.Warning, v.Record.Status.LastError.Message, deletable().Message} {
		if !strings.Contains(told, "has not ended within 5s: "+podvoltest.NoImage) {
			t.Errorf("it is told %q", told)
		}
	}

	v.Record = waits
	runs := pod.DeepCopy()
	runs.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	look(runs)
	if c := deletable(); c.Reason != reasonDeleting || c.Status != metav1.ConditionTrue {
		t.Errorf("when it waits no more, the record says %+v", c)
	}
	if p := look(runs); p.Act != ActNone {
		t.Errorf("which is told again: %+v", p)
	}
}
