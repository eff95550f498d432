//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// moments are the points in the life of a dynamic volume at which a component is killed. A moment
// is reached as soon as its objects have been seen once.
var moments = []struct {
	name    string
	reached func(trace) bool
}{
	{"the record is written", func(t trace) bool { return len(t.volumePhases) > 0 }},
	{"the validation pod is made", func(t trace) bool { return t.pods[tarn.StepValidation] > 0 }},
	{"the creation pod is made", func(t trace) bool { return t.pods[tarn.StepCreation] > 0 }},
	{"the volume is created", func(t trace) bool { return t.volumePhases[tarn.VolumeCreated] }},
	{"the stage is made", func(t trace) bool { return t.stages > 0 }},
	{"the staging pod is made", func(t trace) bool { return t.pods[tarn.StepStaging] > 0 }},
	{"the volume is staged", func(t trace) bool { return t.nodePhases[tarn.StageStaged] }},
	{"the node has unmounted", func(t trace) bool { return t.nodePhases[tarn.StageUnmounted] }},
	{"the unstaging pod is made", func(t trace) bool { return t.pods[tarn.StepUnstaging] > 0 }},
	{"the deletion has begun", func(t trace) bool { return t.volumePhases[tarn.VolumeDeleting] }},
	{"the deletion pod is made", func(t trace) bool { return t.pods[tarn.StepDeletion] > 0 }},
}

// manyKills is how long a step may take while components are killed for many cases in parallel.
// After each failed mount the kubelet doubles its pause, up to two minutes when four minutes have
// passed.
const manyKills = 6 * time.Minute

// staged says at which moments parts of Tarn are killed: at some by default, at all where every
// case is requested. Where they are pods, a takeover takes seconds, because a killed leader cannot
// release its lease.
func staged(moment string) bool {
	switch moment {
	case "the creation pod is made", "the volume is staged", "the node has unmounted", "the deletion pod is made", "a claim is bound", "a volume is nobody's":
		return true
	}
	return wide()
}

// The cases that kill Tarn's parts run in parallel, so that each also meets the kills of the others
// at any point. Other cases do not run beside them.
func TestWhoeverIsKilled(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"a volume lives on", aVolumeLivesOn},
		{"a pool fills up", aPoolFillsUp},
		{"a block volume is wiped", aBlockVolumeIsWiped},
		{"trash is emptied", trashIsEmptied},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
	t.Cleanup(func() { (&scenario{t: t, ctx: context.Background()}).tarnAgain() })
}

// aVolumeLivesOn though components are killed at one moment of its life. It kills the only
// controller (or the leading pod), the node agent, or all components. Groups of lives run one after
// another, because the kubelet's pause before a retry grows with each kill of the node agent, up to
// a minute.
func aVolumeLivesOn(t *testing.T) {
	groups := [][]string{{controller}, {nodeAgent}, {controller, nodeAgent}}
	if inPods() {
		groups[2] = []string{controller, standby, nodeAgent}
	}
	if !wide() {
		groups = groups[2:]
	}
	for _, victims := range groups {
		t.Run(strings.Join(victims, " and ")+" die as", func(t *testing.T) {
			for _, moment := range moments {
				if !staged(moment.name) {
					continue
				}
				t.Run(moment.name, func(t *testing.T) {
					t.Parallel()
					s := begin(t, "crash")
					s.needsThisMachine()
					s.step = manyKills
					killed := s.killWhen(moment.reached, victims)
					s.dynamicLife()
					if err := <-killed; err != nil {
						t.Errorf("killing %s: %v", victims, err)
					}
				})
			}
		})
	}
}

// killWhen kills components as soon as the case has reached a moment. The channel receives the
// result after that.
func (s *scenario) killWhen(reached func(trace) bool, victims []string) <-chan error {
	return s.when(reached, func() error { return suite.machine.kill(victims...) })
}

// when calls do as soon as the case has reached a moment. The channel receives the result.
func (s *scenario) when(reached func(trace) bool, do func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			change := suite.news.next()
			if reached(suite.news.of(s.name)) {
				done <- do()
				return
			}
			select {
			case <-change:
			case <-s.t.Context().Done():
				done <- s.t.Context().Err()
				return
			}
		}
	}()
	return done
}
