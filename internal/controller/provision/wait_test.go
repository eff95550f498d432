package provision

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

func TestWhatAPodWaitsForIsSaidAsLongAsItDoes(t *testing.T) {
	waits := func(r *tarnv1.PavVolume) { say(&r.Status, r, reasonPodWaits, "no such image") }
	for _, c := range []struct {
		name string
		view *View
		// wantReason and wantMessage are those of the condition written, empty for none.
		wantReason, wantMessage string
		wantEvent               bool
	}{
		{"it says so", viewOf(record(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodStarting, Message: "no such image"})), reasonPodWaits, "no such image", false},
		{"once", viewOf(record(tarnv1.VolumeCreating, waits), pod(steppod.Observation{State: steppod.PodStarting, Message: "no such image"})), "", "", false},
		{"and not any more when it runs", viewOf(record(tarnv1.VolumeCreating, waits), pod(steppod.Observation{State: steppod.PodRunning})), reasonInProgress, "attempt 1: Creating", false},
		{"but is not forgotten at its end", viewOf(record(tarnv1.VolumeCreating, waits), pod(steppod.Observation{State: steppod.PodSettling})), "", "", false},
		{"one that never waited says nothing", viewOf(record(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodRunning})), "", "", false},
		{"one that goes says nothing in its time", viewOf(record(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodGoing})), "", "", false},
		{"of one that does not go the claim is told", viewOf(record(tarnv1.VolumeCreating), pod(steppod.Observation{State: steppod.PodGoing, Message: "node n1 does not confirm it"})), reasonPodWaits, "does not confirm", true},
		{"in a validation too", viewOf(record(tarnv1.VolumeValidating), pod(steppod.Observation{State: steppod.PodGoing, Message: "node n1 does not confirm it"})), reasonPodWaits, "does not confirm", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decide(c.view, now)
			if (c.wantReason == "") != (got.Act == ActNone) || c.wantEvent != (got.Warning != "") || c.wantEvent && !strings.Contains(got.Warning, c.wantMessage) {
				t.Fatalf("decide = %s, Event %q", got.Act, got.Warning)
			}
			if waits := c.wantReason == reasonPodWaits && !c.wantEvent; waits != (got.WaitNote != "") || waits && !strings.Contains(got.WaitNote, c.wantMessage) {
				t.Errorf("the claim is told %q", got.WaitNote)
			}
			if c.wantReason == "" {
				return
			}
			if said := meta.FindStatusCondition(got.Status.Conditions, tarnv1.ConditionProvisioned); said.Reason != c.wantReason || !strings.Contains(said.Message, c.wantMessage) {
				t.Errorf("the condition is %+v, want %s with %q", said, c.wantReason, c.wantMessage)
			}
		})
	}
}
