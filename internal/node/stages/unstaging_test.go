package stages

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	words "tarn.dev/tarn/internal/volume"
)

func TestTheWordOfAnUnstagingPodIsHandedOnWhenItHasFailed(t *testing.T) {
	attempt := func(s *tarnv1.PavStage) {
		s.Status.Pod.Namespace, s.Status.Pod.Name, s.Status.Pod.UID = "ns", "pav-unstaging-7-2", "7"
		s.Status.Pod.NextAttemptTime = &metav1.Time{Time: now}
	}
	said := func(pod, text string) func(*tarnv1.PavStage) {
		return func(s *tarnv1.PavStage) {
			s.Status.Node.Message = words.UnstagingWord(tarnv1.PavStagePodStatus{Namespace: "ns", Name: pod}, text)
		}
	}
	for name, test := range map[string]struct {
		changes []func(*tarnv1.PavStage)
		text    string
		want    string // of what is written
		writes  bool
	}{
		"it is told":                        {nil, "held", "unstaging pod ns/pav-unstaging-7-2 failed: held", true},
		"once":                              {[]func(*tarnv1.PavStage){said("pav-unstaging-7-2", "held")}, "held", "", false},
		"a pod that writes nothing":         {nil, "", "", false},
		"after one that wrote something":    {[]func(*tarnv1.PavStage){said("pav-unstaging-7-1", "held")}, "", "", true},
		"one that runs":                     {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Pod.NextAttemptTime = nil }}, "held", "", false},
		"one that was refused":              {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Pod.Name, s.Status.Pod.UID = "", "" }}, "held", "", false},
		"one of somebody else":              {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Pod.UID = "" }}, "held", "", false},
		"what was said of staging is kept":  {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Node.Message = "Staging pod failed: no bucket" }}, "", "", false},
		"and gives way to what comes later": {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Node.Message = "Staging pod failed: no bucket" }}, "held", "unstaging pod ns/pav-unstaging-7-2 failed: held", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := stage(append([]func(*tarnv1.PavStage){node(tarnv1.StageUnmounted), pod(tarnv1.StagePodUnstaging), ending(time.Second), attempt}, test.changes...)...)
			got, writes := "", false
			for _, a := range plan(View{Stage: s, Folder: true, PodError: test.text, Now: now}) {
				if a.verb == tellUnstaging {
					got, writes = a.message, true
				}
			}
			if got != test.want || writes != test.writes {
				t.Errorf("writes %q (%t), want %q (%t)", got, writes, test.want, test.writes)
			}
		})
	}
}
