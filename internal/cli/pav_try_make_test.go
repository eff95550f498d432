package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAPhaseIsDatedByItsFirstWordOfEachAttempt(t *testing.T) {
	w, start := &tryWorld{}, time.Unix(1000, 0)
	for i, seen := range []struct {
		phase   tarnv1.VolumePhase
		attempt int32
	}{
		{"", 0}, {tarnv1.VolumeValidating, 1}, {tarnv1.VolumeValidating, 1}, {tarnv1.VolumeCreating, 1}, {tarnv1.VolumeUndoing, 1}, {tarnv1.VolumePending, 1},
		{tarnv1.VolumeValidating, 2}, {tarnv1.VolumeCreating, 2}, {tarnv1.VolumeCreating, 2}, {tarnv1.VolumeCreated, 2}, {tarnv1.VolumeCreated, 2},
	} {
		w.note(&tarnv1.PavVolume{Status: tarnv1.PavVolumeStatus{Phase: seen.phase, Attempts: seen.attempt}}, start.Add(time.Duration(i)*time.Second))
		w.note(&tarnv1.PavStage{}, start)
	}
	for _, c := range []struct {
		phase   tarnv1.VolumePhase
		attempt int32
		want    int
	}{
		{tarnv1.VolumeValidating, 1, 1}, {tarnv1.VolumeCreating, 1, 3}, {tarnv1.VolumeValidating, 2, 6}, {tarnv1.VolumeCreating, 2, 7}, {tarnv1.VolumeCreated, 2, 9},
	} {
		if got := w.since(c.phase, c.attempt); !got.Equal(start.Add(time.Duration(c.want) * time.Second)) {
			t.Errorf("%s of attempt %d: %v, want second %d", c.phase, c.attempt, got, c.want)
		}
	}
	if at := w.since(tarnv1.VolumeCreated, 1); !at.IsZero() {
		t.Errorf("attempt 1 was never Created, but at %v", at)
	}
}

func TestAStepHasTheTimeThatObjectsTell(t *testing.T) {
	out := &bytes.Buffer{}
	try := &pavTry{out: out}
	told := func(context.Context) (string, error) { try.took = 90 * time.Second; return "by its pod", nil }
	own := func(context.Context) (string, error) { return "", errors.New("no") }
	if try.step(t.Context(), "created", told) != nil || try.step(t.Context(), "bound", own) == nil {
		t.Error("steps do not end as they are told")
	}
	if s := try.report.Steps; s[0].Seconds != 90 || s[1].Seconds >= 90 || !strings.Contains(out.String(), "ok     created       90.00 s  by its pod\nFAILED bound") {
		t.Errorf("got %+v:\n%s", s, out)
	}
}

func TestOnlyAFailureOfTheProvisionerAsItStandsEndsATest(t *testing.T) {
	try := &pavTry{generation: 3}
	for generation, want := range map[int64]bool{2: false, 3: true} {
		record := &tarnv1.PavVolume{Status: tarnv1.PavVolumeStatus{LastError: &tarnv1.PavVolumeError{
			Step: tarnv1.StepValidation, Reason: "ClaimRefused", Message: "too large", ProvisionerGeneration: generation,
		}}}
		if err := try.failure(record); (err != nil) != want {
			t.Errorf("generation %d: %v", generation, err)
		}
	}
	if err := try.failure(&tarnv1.PavVolume{}); err != nil {
		t.Error(err)
	}
}
