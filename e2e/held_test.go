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
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](600)
	})
	s.ready(writer)
	s.ready(other)
	s.ready(slow)
	stage := s.stageOf("staged", healthy(tarn.ReasonStaged))

	s.delete(slow) // before the stage, and the deletion takes some time
	s.delete(stage)
	const held = "and they keep it; no other pod on node "
	// waitsFor waits for the Event that names exactly these users.
	waitsFor := func(users ...string) {
		t.Helper()
		names := " until these have ended: " + s.name + "/" + strings.Join(users, ", "+s.name+"/")
		s.await("the stage to be held by "+names, func() (bool, string) {
			events := s.events("", stage.Name)
			return slices.ContainsFunc(events, func(e corev1.Event) bool {
				return e.Reason == "UnstagingHeld" && strings.Contains(e.Message, held) && strings.HasSuffix(e.Message, names)
			}), eventLines(events)
		})
	}
	waitsFor("other", "slow", "writer")
	s.remove(other) // it does not wait for the end of the stage
	next := s.consumer("next", claim.Name, stays)
	s.told(next, "FailedMount", held, "until these have ended: "+s.name+"/slow, "+s.name+"/writer")
	s.explainsThat(os.Getenv("KUBECONFIG"), "pod", s.name+"/"+next.Name, "it to name the pods that hold the stage", func(e explanation) bool {
		return containsAll(e.Verdict, []string{"volume " + claim.Spec.VolumeName + " is being unstaged on node ", ", which waits: "}) && slices.ContainsFunc(e.Links, func(l link) bool {
			return strings.Contains(l.Message, "until these have ended: "+s.name+"/slow, "+s.name+"/writer")
		})
	})
	s.stillWrites(writer, shelf)
	if still := read(s, stage.DeepCopy()); still.UID != stage.UID || still.DeletionTimestamp == nil || still.Status.Pod.Phase != tarn.StagePodRunning {
		t.Errorf("stage %s is %s, want %s with its pod, and to be deleted", still.UID, still.Status.Pod.Phase, stage.UID)
	}

	s.remove(writer)
	waitsFor("slow")
	put(t, filepath.Join(shelf, "data", "go"))
	s.gone(slow)
	if text, err := os.ReadFile(filepath.Join(shelf, "data", "last")); err != nil || string(text) != "bye\n" {
		t.Errorf("a pod that was asked to end before the stage was wrote %q (%v) last, want bye", text, err)
	}
	waitsFor("crashes") // between two containers
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
