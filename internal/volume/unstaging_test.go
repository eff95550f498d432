package volume

import (
	"testing"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestTheWordOfAnUnstagingPodIsThatPodsAlone(t *testing.T) {
	first := tarnv1.PavStagePodStatus{Namespace: "ns", Name: "pav-unstaging-7-1"}
	second := first
	second.Name = "pav-unstaging-7-2"
	for _, c := range []struct {
		name, message string
		pod           tarnv1.PavStagePodStatus
		want          string
		wantWord      bool
	}{
		{"of this pod", UnstagingWord(first, "the lock is held"), first, "the lock is held", true},
		{"of the attempt before", UnstagingWord(first, "the lock is held"), second, "", true},
		{"what a staging pod has said", "Staging pod failed: no bucket", first, "", false},
		{"nothing", "", first, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			stage := &tarnv1.PavStage{}
			stage.Status.Node.Message, stage.Status.Pod = c.message, c.pod
			if got := TextOfUnstaging(stage); got != c.want {
				t.Errorf("text %q, want %q", got, c.want)
			}
			if got := IsUnstagingWord(c.message); got != c.wantWord {
				t.Errorf("a word: %t, want %t", got, c.wantWord)
			}
		})
	}
}
