//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestAPodWritesOnThoughItsStageWasDeletedByHand(t *testing.T) {
	t.Parallel()
	shelf := shelfWithData(t)
	s := begin(t, "held")
	s.needsThisMachine()
	s.create(s.provisioner(fields{
		"volumeCreation": asRequested, "volumeStaging": bindsShelf(shelf, "exit 1"),
		"volumeUnstaging": script{hostDir: shelf, text: "echo once >> /host/unstaged"}.section(nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	writer := s.consumer("writer", claim.Name, writes)
	other := s.consumer("other", claim.Name, stays)
	crashes := s.consumer("crashes", claim.Name, "false", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
	slow := s.consumer("slow", claim.Name, "trap '' TERM; until [ -e /data/go ]; do sleep 0.1; done; echo bye > /data/last", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](120)
	})
	s.ready(writer)
	s.ready(other)
	s.ready(slow)
	stage := s.stageOf("staged", healthy(tarn.ReasonStaged))

	s.delete(slow) // before the stage, and it takes its time
	s.delete(stage)
	const held = "not taken from them; on node "
	s.told(stage, "UnstagingHeld", held, "until these have ended: "+s.name+"/other, "+s.name+"/slow, "+s.name+"/writer")
	s.remove(other) // which does not wait for the end of the stage
	next := s.consumer("next", claim.Name, stays)
	s.told(next, "FailedMount", held, "until these have ended: "+s.name+"/slow, "+s.name+"/writer")
	waits := s.explains("pod", s.name+"/"+next.Name, "volume "+claim.Spec.VolumeName+" is being unstaged on node ")
	if !slices.ContainsFunc(waits.Links, func(l link) bool {
		return strings.Contains(l.Message, "until these have ended: "+s.name+"/slow, "+s.name+"/writer")
	}) || !strings.Contains(waits.Verdict, ", which waits: ") {
		t.Errorf("tarn explain does not name the pod that holds the stage: %+v", waits)
	}
	s.stillWrites(writer, shelf)
	if still := s.stageOf("held", func(g *tarn.PavStage) bool { return g.DeletionTimestamp != nil }); still.UID != stage.UID || still.Status.Pod.Phase != tarn.StagePodRunning {
		t.Errorf("stage %s is %s, want %s with its pod", still.UID, still.Status.Pod.Phase, stage.UID)
	}

	s.remove(writer)
	s.told(stage, "UnstagingHeld", "until these have ended: "+s.name+"/slow")
	put(t, filepath.Join(shelf, "data", "go"))
	s.gone(slow)
	if text, err := os.ReadFile(filepath.Join(shelf, "data", "last")); err != nil || string(text) != "bye\n" {
		t.Errorf("a pod that was asked to end before the stage was wrote %q (%v) last, want bye", text, err)
	}
	s.told(stage, "UnstagingHeld", "until these have ended: "+s.name+"/crashes") // between two containers
	s.remove(crashes)
	s.ready(next)
	if text := unstaged(t, shelf); text != "once\n" {
		t.Errorf("the unstaging pods wrote %q, want one line", text)
	}
	if !s.gone(stage) {
		t.FailNow()
	}
	s.remove(next)
	s.remove(claim)
}
