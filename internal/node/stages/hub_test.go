package stages

import (
	"testing"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestACallHearsOfAnOwnWriteAtOnceAndIsNotTakenBackByOlderEvents(t *testing.T) {
	h := hub{}
	sub, end := h.subscribe("s")
	defer end()
	at := func(version string, phase tarnv1.StageNodePhase) *tarnv1.PavStage {
		return stage(node(phase), func(s *tarnv1.PavStage) { s.Name, s.ResourceVersion = "s", version })
	}
	for _, step := range []struct {
		what string
		see  func()
		want tarnv1.StageNodePhase
	}{
		{"an event", func() { h.see(at("5", tarnv1.StageWaiting), false) }, tarnv1.StageWaiting},
		{"an own write", func() { h.tell(at("9", tarnv1.StageStaged)) }, tarnv1.StageStaged},
		{"the event of a write before it", func() { h.see(at("7", tarnv1.StageWaiting), false) }, tarnv1.StageStaged},
		{"the event of a write after it", func() { h.see(at("11", tarnv1.StageLost), false) }, tarnv1.StageLost},
	} {
		changed := sub.next()
		step.see()
		select {
		case <-changed:
		default:
			t.Errorf("%s does not wake the call", step.what)
		}
		if got := sub.newest(nil); got.Status.Node.Phase != step.want {
			t.Errorf("after %s the call knows of %s, want %s", step.what, got.Status.Node.Phase, step.want)
		}
	}
}
