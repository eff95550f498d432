//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// moments are the points in the life of a dynamic volume at which a component is
// killed: as soon as what is there was ever seen.
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

// manyKills is what a step may take while components are killed for many cases at once:
// after each failed mount the kubelet waits twice as long, for two minutes in the end, when
// four have gone by.
const manyKills = 6 * time.Minute

// staged says at which moments parts of Tarn are killed: at some, and at all where every case
// is asked for. Where they are pods another leads after seconds only, as the killed one cannot
// give its lease back.
func staged(moment string) bool {
	switch moment {
	case "the creation pod is made", "the volume is staged", "the node has unmounted", "the deletion pod is made", "a claim is bound", "a volume is nobody's":
		return true
	}
	return wide()
}

// The cases that kill Tarn's parts go on side by side, so that each is hit by the kills of
// the others too, wherever it is; other cases do not run beside them.
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

// aVolumeLivesOn though components are killed at one moment of its life: the only controller,
// or, where they are pods, the one that leads; the node agent; all there is. One group of
// lives follows the other: with each kill of the node agent the kubelet waits longer
// before it asks for a volume again, for a minute in the end.
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

// killWhen kills components as soon as the case has reached a moment. The result
// arrives once that is done.
func (s *scenario) killWhen(reached func(trace) bool, victims []string) <-chan error {
	return s.when(reached, func() error { return suite.machine.kill(victims...) })
}

// when does something as soon as the case has reached a moment. Its result arrives then.
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
