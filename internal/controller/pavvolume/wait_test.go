package pavvolume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
)

func TestWhatAPodWaitsForIsSaidAsLongAsItDoes(t *testing.T) {
	waits := func(r *tarnv1.PavVolume) { sayProvisioned(&r.Status, r, reasonPodWaits, "no such image") }
	for _, c := range []struct {
		name string
		view *View
		// wantReason and wantMessage are those of the condition written, empty for none.
		wantReason, wantMessage string
		wantEvent               bool
	}{
		{"it says so", viewOf(recordIn(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodStarting, Message: "no such image"})), reasonPodWaits, "no such image", false},
		{"once", viewOf(recordIn(tarnv1.VolumeCreating, waits), pod(steppod.Observation{State: steppod.PodStarting, Message: "no such image"})), "", "", false},
		{"and not any more when it runs", viewOf(recordIn(tarnv1.VolumeCreating, waits), pod(steppod.Observation{State: steppod.PodRunning})), reasonInProgress, "attempt 1: Creating", false},
		{"but is not forgotten at its end", viewOf(recordIn(tarnv1.VolumeCreating, waits), pod(steppod.Observation{State: steppod.PodSettling})), "", "", false},
		{"one that never waited says nothing", viewOf(recordIn(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodRunning})), "", "", false},
		{"one that goes says nothing in its time", viewOf(recordIn(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodGoing})), "", "", false},
		{"of one that does not go the claim is told", viewOf(recordIn(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodGoing, Message: "node n1 does not confirm it"})), reasonPodWaits, "does not confirm", true},
		{"in a validation too", viewOf(recordIn(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodGoing, Message: "node n1 does not confirm it"})), reasonPodWaits, "does not confirm", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plan(c.view, now)
			warning, waitNote := note(got, eventFailed), note(got, steppod.EventPodWaiting)
			if (c.wantReason == "") != (got.Record == nil) || c.wantEvent != (warning != "") || c.wantEvent && !strings.Contains(warning, c.wantMessage) {
				t.Fatalf("plan: %s, Event %q", told(got), warning)
			}
			if waits := c.wantReason == reasonPodWaits && !c.wantEvent; waits != (waitNote != "") || waits && !strings.Contains(waitNote, c.wantMessage) {
				t.Errorf("the claim is told %q", waitNote)
			}
			if c.wantReason == "" {
				return
			}
			if said := conditionOf(got.Record.Status, tarnv1.ConditionProvisioned); said.Reason != c.wantReason || !strings.Contains(said.Message, c.wantMessage) {
				t.Errorf("the condition is %+v, want %s with %q", said, c.wantReason, c.wantMessage)
			}
		})
	}
}

func TestADeletionPodThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	v := endingOf(tarnv1.VolumeDeleting)
	v.Record = begunDeletion(v, 1, "ns").Record
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", CreationTimestamp: metav1.NewTime(now), OwnerReferences: []metav1.OwnerReference{{UID: v.Record.UID}},
	}}
	look := func(pod *corev1.Pod) Plan {
		v.Pod, v.Observed = pod, steppod.Observe(pod, v.Record.UID, now.Add(time.Second))
		return follow(v, now.Add(time.Second))
	}
	deletable := func() metav1.Condition { return conditionOf(v.Record.Status, tarnv1.ConditionDeletable) }
	look(steppodtest.CannotPull(pod))
	if c := deletable(); c.Reason != reasonDeletionPodWaits || c.Message != steppodtest.NoImage {
		t.Fatalf("while it waits, the record says %+v", c)
	}
	waits := v.Record.DeepCopy()

	p := look(steppodtest.TimeIsUp(pod))
	for _, told := range []string{note(p, eventDeleteFailed), v.Record.Status.LastError.Message, deletable().Message} {
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
	if p := look(runs); told(p) != "" {
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
		"a creation that is undone": func(v *View) { v.Pods = []corev1.Pod{going(v)} },
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
			v := endingOf(tarnv1.VolumeUndoing, change)
			look := func(at time.Time) Plan {
				v.Observed = steppod.Observe(v.Pod, v.Record.UID, at)
				return follow(v, at)
			}
			p := look(now)
			if warning := note(p, eventDeleteFailed); warning != "" || !p.Next.After(now) {
				t.Fatalf("before its time is up it is told %q, and looked at again at %s", warning, p.Next)
			}
			at := p.Next
			warning := note(look(at), eventDeleteFailed)
			said := conditionOf(v.Record.Status, tarnv1.ConditionDeletable)
			if !strings.Contains(said.Message, "delete pod p --force") || warning != said.Message {
				t.Errorf("then the condition is %+v, the Event %q, want the command in both", said, warning)
			}
			if p := look(at.Add(time.Minute)); note(p, eventDeleteFailed) != "" || p.Record != nil {
				t.Errorf("it is told again: %+v", p)
			}
		})
	}
}

// follow plans, and gives the view the record that the plan writes.
func follow(v *View, at time.Time) Plan {
	p := plan(v, at)
	if p.Record != nil {
		v.Record = p.Record
	}
	return p
}
