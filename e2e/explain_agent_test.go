//go:build e2e

package e2e

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// Not parallel: no other case can go on meanwhile.
func TestExplainSaysThatTheNodeAgentDoesNotAnswer(t *testing.T) {
	s := begin(t, "explain-agent")
	s.needsThisMachine()
	gate := t.TempDir()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": script{hostDir: gate,
		text: "if test {{ pvc.metadata.name }} = gated; then until [ -e /host/open ]; do sleep 0.1; done; fi; mkdir /pav/volume"}.section(nil)}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	settles := s.another("-settles", fields{"volumeCreation": script{hostDir: gate, text: "until [ -e /host/open ]; do sleep 0.1; done"}.section(asRequested), "volumeStaging": greeting})
	settling := s.claimWith("settling", ofClass(settles))
	claim := s.bound(s.claim("data"))
	s.bound(s.claim("gated"))
	gated := s.consumer("gated", "gated", stays)
	s.stageOf("waiting for its pod", func(g *tarn.PavStage) bool { return g.Status.Pod.Phase == tarn.StagePodRunning })
	kept := s.bound(s.claim("kept"))
	leaves := s.consumer("leaves", kept.Name, stays)
	s.ready(leaves)
	s.explainsClaim("settling", "is Pending: the creation pod default/pav-creation-", "has been running for")
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
	if err := os.WriteFile(gate+"/open", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.explains("pod", s.name+"/gated", "is not staged on node ", ": its pod has ended, and the node agent does not answer")
	s.explainsClaim("settling", "is Pending: the creation pod default/pav-creation-", " has ended, and the node agent on ", " has not told what it left in /pav")
	s.explains("pod", s.name+"/leaves", "is Terminating: its containers have ended, and the kubelet has not taken its volumes back")
	s.delete(kept)
	if err := suite.live.Delete(s.ctx, leaves, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.gone(kept)
	s.explains("volume", kept.Spec.VolumeName, "is Released: volume "+kept.Spec.VolumeName+" is still staged on node ")
	goOn()
	s.bound(settling)
	for _, waited := range []*corev1.Pod{pod, gated, unserved} {
		s.ready(waited)
	}
	s.remove(unserved)
	s.remove(byHand)
	s.remove(settling)
}
