package recycle

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod/steppodtest"
)

func TestAScrubPodThatNeverRanIsToldWithWhatEndedIt(t *testing.T) {
	gone := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists"}
	for _, c := range []struct {
		name, want string
		status     corev1.PodStatus
	}{
		{"its node", "DeletionByPodGC: PodGC: node no longer exists", corev1.PodStatus{Conditions: []corev1.PodCondition{gone}}},
		{"its kubelet", "OutOfcpu", corev1.PodStatus{Reason: "OutOfcpu", Conditions: []corev1.PodCondition{gone}}},
		{"its kubelet, in more words", "no room", corev1.PodStatus{Reason: "OutOfcpu", Message: "no room"}},
		{"nobody knows who", "no reason is given", corev1.PodStatus{}},
	} {
		if got := failureOfPod(&corev1.Pod{Status: c.status}); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestARecyclingPodThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name string
		with []viewWith
	}{
		{"the first time", nil},
		{"after a failure", []viewWith{having(tarnv1.AnnotationRecycleFailure, `{"claim": "an-older-uid", "attempts": 1, "message": "no"}`), reported}},
		{"after it was recycled once", []viewWith{having(tarnv1.AnnotationRecycled, `{"claim": "an-older-uid", "method": "Zero"}`), reported}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view(append([]viewWith{provided, method(tarnv1.RecycleZero), pointing, claim("scrub-uid"), worked(tarnv1.StepRecycling, false, "")}, c.with...)...)
			fresh := v.Work[0]
			look := func(pod *corev1.Pod) Plan {
				v.Work[0] = *pod
				p := plan(v, noon)
				writeRecord(v, p)
				return p
			}
			said := func() *metav1.Condition {
				return meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionRecycled)
			}
			look(steppodtest.CannotPull(&fresh))
			if c := said(); c == nil || c.Reason != reasonPodWaits || !strings.Contains(c.Message, steppodtest.NoImage) {
				t.Fatalf("while it waits, the record says %+v", c)
			}
			if p := look(steppodtest.CannotPull(&fresh)); strings.Contains(words(v, p), "report") {
				t.Errorf("which is told again: %s", words(v, p))
			}
			waits := *said()

			note := failureOf(volumeOf(look(steppodtest.TimeIsUp(&fresh)))).Message
			if !strings.Contains(note, "the recycling pod failed: ") || !strings.Contains(note, "within 5s: "+steppodtest.NoImage) {
				t.Errorf("it is told %q", note)
			}

			meta.SetStatusCondition(&v.Record.Status.Conditions, waits)
			runs := fresh.DeepCopy()
			runs.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			look(runs)
			if c := said(); c.Reason == reasonPodWaits {
				t.Errorf("when it waits no more, the record says %+v", c)
			}
		})
	}
}

func TestAScrubPodThatHasRunTooLongTellsWhatItWaitedFor(t *testing.T) {
	for _, c := range []struct {
		changes []viewWith
		want    string
	}{
		{[]viewWith{withoutImage}, "has not ended within 5m0s: container scrub: ErrImagePull"},
		{[]viewWith{unscheduled}, "has not ended within 5m0s: not scheduled: 0/1 nodes fit"},
		{nil, "its Events may say why: kubectl -n " + testNamespace + " describe pod "},
	} {
		v := view(append([]viewWith{pointing, claim("scrub-uid"), pod(corev1.PodPending, ""), older}, c.changes...)...)
		said := volumeOf(plan(v, noon)).Annotations[tarnv1.AnnotationRecycleFailure]
		if !strings.Contains(said, c.want) {
			t.Errorf("the volume bears %q, want %q in it", said, c.want)
		}
	}
}

func TestAScrubPodThatNeverRanIsExplainedByWhatItWaitedFor(t *testing.T) {
	v := view(pointing, claim("scrub-uid"), pod(corev1.PodPending, ""))
	fresh := v.Pod
	look := func(pod *corev1.Pod) Plan {
		v.Pod = pod
		p := plan(v, noon)
		for _, a := range p.Actions {
			if patch, ok := a.(action.Patch); ok && isClaim(patch.To) {
				v.Claim = patch.To.(*corev1.PersistentVolumeClaim)
			}
		}
		return p
	}
	told := func(p Plan) string { return failureOf(volumeOf(p)).Message }
	cannot, late := steppodtest.CannotPull(fresh), steppodtest.TimeIsUp(fresh)
	delete(late.Annotations, tarnv1.AnnotationResult) // a scrub pod never has this annotation
	look(cannot)
	if got := words(v, look(cannot)); got != eventPod+" wait" {
		t.Errorf("looked at again, it does %q, want nothing to be written", got)
	}
	look(fresh) // the kubelet retries, and reports nothing for a moment
	if got := told(look(late)); !strings.HasSuffix(got, "has not ended within 5s: "+steppodtest.NoImage) {
		t.Errorf("it is told %q", got)
	}
	runs := fresh.DeepCopy()
	runs.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	look(runs)
	if got := told(look(late)); strings.Contains(got, steppodtest.NoImage) {
		t.Errorf("when it has run, it is told %q", got)
	}
}
