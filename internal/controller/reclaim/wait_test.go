package reclaim

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
)

func TestADeletionPodThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	v := viewOf(tarnv1.VolumeDeleting, func(v *View) { v.Record.Status = *begun(v.Record, 1, "ns") })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", CreationTimestamp: metav1.NewTime(now), OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
	}}
	look := func(pod *corev1.Pod) Plan {
		v.Pod, v.Observed = pod, steppod.Observe(pod, v.Record.UID, now.Add(time.Second))
		p := decide(v, now.Add(time.Second))
		if p.Status != nil {
			v.Record.Status = *p.Status
		}
		return p
	}
	deletable := func() *metav1.Condition {
		return meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
	}
	look(steppodtest.CannotPull(pod))
	if c := deletable(); c.Reason != reasonPodWaits || c.Message != steppodtest.NoImage {
		t.Fatalf("while it waits, the record says %+v", c)
	}
	waits := v.Record.DeepCopy()

	p := look(steppodtest.TimeIsUp(pod))
	for _, told := range []string{p.Warning, v.Record.Status.LastError.Message, deletable().Message} {
		if !strings.Contains(told, "has not ended within 5s: "+steppodtest.NoImage) {
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

// A pod whose node does not confirm its end blocks its volume until a user checks the node. A
// Warning says so, with the command, whatever the pod was doing.
func TestAPodThatDoesNotGoIsToldWhateverItWasAt(t *testing.T) {
	asked := metav1.NewTime(now.Add(-time.Minute))
	going := func(v *View) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p", DeletionTimestamp: &asked, OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
		}, Spec: corev1.PodSpec{NodeName: "n1"}}
	}
	over := metav1.NewTime(now.Add(-time.Second))
	for name, change := range map[string]func(*View){
		"a creation that is undone": func(v *View) { v.Others = []corev1.Pod{going(v)} },
		"a deletion that is to be repeated": func(v *View) {
			pod := going(v)
			v.Pod, v.Record.Status.NextDeletionTime = &pod, &over
		},
		"a deletion at work": func(v *View) { pod := going(v); v.Pod = &pod },
		"a deletion that is taken back": func(v *View) {
			pod := going(v)
			v.Pod, v.Record.Status.Phase = &pod, tarnv1.VolumeDeleting
			withVolume(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete)(v)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := viewOf(tarnv1.VolumeUndoing, change)
			look := func(at time.Time) Plan {
				v.Observed = steppod.Observe(v.Pod, v.Record.UID, at)
				p := decide(v, at)
				if p.Status != nil {
					v.Record.Status = *p.Status
				}
				return p
			}
			p := look(now)
			if p.Warning != "" || !p.Next.After(now) {
				t.Fatalf("before its time is up it is told %q, and looked at again at %s", p.Warning, p.Next)
			}
			at := p.Next
			p = look(at)
			said := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
			if said == nil || !strings.Contains(said.Message, "delete pod p --force") || p.Warning != said.Message {
				t.Errorf("then the condition is %+v, the Event %q, want the command in both", said, p.Warning)
			}
			if p := look(at.Add(time.Minute)); p.Warning != "" || p.Status != nil {
				t.Errorf("it is told again: %+v", p)
			}
		})
	}
}
