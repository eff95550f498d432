//go:build e2e

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestWhatAnUnstagingPodSaysWhenItFailsReachesTheUser(t *testing.T) {
	t.Parallel()
	const says = "the lock is held"
	s := begin(t, "unstaging-says")
	s.step = 2 * soon // its attempts come with growing pauses
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil),
		// A text that a successful staging leaves there is not the result of unstaging.
		"volumeStaging":   script{text: "echo half done > /pav/error; mkdir /pav/volume"}.section(nil),
		"volumeUnstaging": script{text: "cat /pav/error; echo '" + says + "' > /pav/error; exit 1"}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	mend := func() {
		mended := s.provisioner(nil)
		mended.Object["spec"] = fields{"volumeUnstaging": script{text: "true"}.section(nil)}
		s.edit(mended)
	}
	t.Cleanup(mend) // else a case that fails would not end
	claim := s.bound(s.claim("data"))
	pod := s.consumer("web", claim.Name, stays)
	s.ready(pod)
	stage := s.stageOf("there", func(*tarn.PavStage) bool { return true })
	s.delete(pod)
	for _, about := range []client.Object{claim, stage} {
		s.told(about, "UnstagingFailed", says, "container main exited with 1")
	}
	s.goesOn("pod", s.name+"/web", "PavStage", []string{"unstaging attempt ", " in ", ", at "},
		"is Terminating: volume "+claim.Spec.VolumeName+" cannot be unstaged on node ", says, "container main exited with 1")
	s.stageOf("saying so itself", func(g *tarn.PavStage) bool { return strings.HasPrefix(g.Status.Pod.Message, says) })
	mend()
	s.gone(pod)
	s.gone(stage)
	for _, e := range s.events(claim.Namespace, claim.Name) {
		if e.Reason == "UnstagingFailed" && strings.Contains(e.Message, "half done") {
			t.Errorf("what the staging pod has left is told as of the unstaging pod: %s", e.Message)
		}
	}
	s.remove(claim)
}
