//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Not parallel: meanwhile no other case can make progress.
func TestExplainSaysThatTheNodeAgentDoesNotAnswer(t *testing.T) {
	s := begin(t, "explain-agent")
	s.needsThisMachine()
	gate := t.TempDir()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": script{hostDir: gate,
		text: "case {{ pvc.metadata.name }} in gated|fails) until [ -e /host/open ]; do sleep 0.1; done;; esac\n" +
			"if test {{ pvc.metadata.name }} = fails && mkdir /host/failed; then exit 3; fi\nmkdir /pav/volume"}.section(nil)}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	settles := s.another("-settles", fields{"volumeCreation": script{hostDir: gate, text: "until [ -e /host/open ]; do sleep 0.1; done"}.section(asRequested), "volumeStaging": greeting})
	settling := s.claimWith("settling", ofClass(settles))
	opens := func() { put(t, gate+"/open") }
	t.Cleanup(opens)
	claim := s.bound(s.claim("data"))
	gatedClaim := s.bound(s.claim("gated"))
	gated := s.consumer("gated", "gated", stays)
	fails := s.bound(s.claim("fails"))
	failing := s.consumer("fails", fails.Name, stays) // the first time
	s.await("two staging pods to run", func() (bool, string) {
		pods := slices.DeleteFunc(s.stepPods(tarn.StepStaging), func(pod corev1.Pod) bool { return pod.Status.Phase != corev1.PodRunning })
		return len(pods) == 2, fmt.Sprint(names(pods))
	})
	gatedStage := s.stageOf("that of the gated pod", func(g *tarn.PavStage) bool { return g.Spec.VolumeName == gatedClaim.Spec.VolumeName })
	kept := s.bound(s.claim("kept"))
	leaves := s.consumer("leaves", kept.Name, stays)
	s.ready(leaves)
	s.explainsClaim("settling", "is Pending: the creation pod tarn-volumes/pav-creation-", "has been running for")
	goOn := s.stops(nodeAgent)

	pod := s.consumer("web", claim.Name, stays)
	s.explains("pod", s.name+"/web", "is starting: volume "+claim.Spec.VolumeName+" is about to be staged on node ")
	s.delete(leaves)
	s.explains("pod", s.name+"/web", "Tarn's node agent on node ", "does not answer")
	driver := s.another("-new", fields{"volumeStaging": greeting}, func(spec fields) { spec["provisioningModes"] = []any{"Static"} })
	vol := s.byHand("new", func(vol *corev1.PersistentVolume) {
		vol.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "by-hand"}}
	})
	byHand := s.naming("new", vol.Name)
	s.bound(byHand)
	unserved := s.consumer("unserved", "new", stays)
	s.explains("pod", s.name+"/unserved", "driver "+driver+" is not registered on node ", ": Tarn's node agent does not run there")
	opens()
	ended := s.stageOf("done with its pod", func(g *tarn.PavStage) bool {
		return g.Name == gatedStage.Name && g.Status.Pod.Phase == tarn.StagePodSucceeded
	})
	// The agent has five seconds from the pod's last known change and from the write of the stage.
	// On a busy machine they may pass before the question. The pod therefore begins in the far
	// future until the question is answered, and the five seconds begin only then.
	begins := func(at time.Time) {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"pod":{"startTime":%q}}}`, at.UTC().Format(time.RFC3339)))
		if err := suite.live.Status().Patch(s.ctx, gatedStage, patch); err != nil {
			t.Fatal(err)
		}
	}
	began := ended.Status.Pod.StartTime.Time
	begins(time.Now().Add(time.Hour))
	s.explains("pod", s.name+"/gated", "is not staged on node ", ": its pod has ended, and the node agent is about to read /pav/volume")
	begins(began)
	s.explains("pod", s.name+"/gated", "is not staged on node ", ": its pod has ended, and the node agent does not respond")
	failed := s.explains("pod", s.name+"/fails", "is starting: volume "+fails.Spec.VolumeName+" is not staged on node ", ": container main exited with 3")
	if next := failed.Links[len(failed.Links)-1].Next + failed.Links[len(failed.Links)-2].Next; !strings.Contains(next, "when the kubelet retries") {
		t.Errorf("of a staging pod that has failed it says %+v", failed.Links)
	}
	s.explainsClaim("settling", "is Pending: the creation pod tarn-volumes/pav-creation-", " has ended, and the node agent on ", " has not read what it left in /pav")
	s.explains("pod", s.name+"/leaves", "is Terminating: its containers have ended, and the kubelet has not unmounted its volumes")
	s.delete(kept)
	if err := suite.live.Delete(s.ctx, leaves, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.gone(kept)
	s.explains("volume", kept.Spec.VolumeName, "is Released: volume "+kept.Spec.VolumeName+" is still staged on node ")
	goOn()
	s.bound(settling)
	for _, waited := range []*corev1.Pod{pod, gated, failing, unserved} {
		s.ready(waited)
	}
	s.remove(unserved)
	s.remove(byHand)
	s.remove(settling)
}
