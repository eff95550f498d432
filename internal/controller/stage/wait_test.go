package stage

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod/steppodtest"
)

// Each kind of pod of a stage is seen while its image cannot be pulled, and then fails at its
// deadline.
func TestAPodOfAStageThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	ofVolume := func(stage *tarnv1.PavStage) func(*corev1.Pod) (message string) {
		return func(change *corev1.Pod) string {
			p := plan(view(stage, pod(change)), noon)
			for _, a := range p.Actions {
				if w, ok := a.(WriteStatus); ok {
					stage.Status.Pod = w.Status
				}
			}
			return stage.Status.Pod.Message
		}
	}
	inExpansion := func() func(*corev1.Pod) string {
		e := anExpansion(&tarnv1.StageExpansion{Attempt: 2, Phase: tarnv1.StageExpansionRunning, Namespace: "ns", Name: "new"})
		return func(change *corev1.Pod) string {
			e.Pods = []corev1.Pod{*change}
			for _, a := range planExpansion(e, noon).Actions {
				if w, ok := a.(WriteStatus); ok {
					e.Stage.Status.Pod = w.Status
				}
			}
			return e.Stage.Status.Pod.Expansion.Message
		}
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		look func(*corev1.Pod) string
	}{
		{"validation", aPod(validation, corev1.PodPending), ofVolume(aStage(validating()))},
		{"staging, with a deadline of its own", aPod(staging, corev1.PodPending), ofVolume(aStage(starting()))},
		{"unstaging", aPod(unstaging, corev1.PodPending), ofVolume(unmounted(aStage(inUnstaging(1))))},
		{"node expansion", growing("new", corev1.PodPending), inExpansion()},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.look(steppodtest.CannotPull(c.pod)); got != steppodtest.NoImage {
				t.Fatalf("while it waits, the stage says %q", got)
			}
			if got := c.look(steppodtest.TimeIsUp(c.pod)); !strings.HasSuffix(got, "has not ended within 5s: "+steppodtest.NoImage) {
				t.Errorf("then the stage says %q", got)
			}
		})
	}
	t.Run("not an earlier pod's", func(t *testing.T) {
		stage := unmounted(aStage(inUnstaging(2)))
		stage.Status.Pod.Message = "busy"
		look := ofVolume(stage)
		if got := look(steppodtest.TimeIsUp(aPod("pav-unstaging-uid-of-stage-2", corev1.PodPending))); strings.Contains(got, "busy") {
			t.Errorf("the stage says %q", got)
		}
	})
}
