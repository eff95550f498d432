//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
)

func TestExplainSaysThatWhoCouldDestroyAVolumeIsGone(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-orphaned")
	sections := fields{"volumeCreation": asRequested, "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting}
	s.create(s.provisioner(sections))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	vol := s.volumeOf(claim)
	p := &pav.PavProvisioner{ObjectMeta: named(s.name)}
	s.delete(p)
	s.unhold(p)
	s.gone(p)
	s.create(s.provisioner(sections)) // another object of the same name
	s.delete(claim)
	s.explains("volume", vol.Name, "is Released: its storage cannot be destroyed yet: PavProvisioner ", ", which created the volume, is gone")
	s.does("kubectl delete pavvolume " + vol.Name)
	s.gone(vol)
}

func TestExplainSaysThatAVolumeWrittenByHandIsValidatedFirst(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir() // until the last pod of the case is gone
	s := begin(t, "explain-checked")
	s.needsThisMachine()
	check := script{text: "until [ -e /host/go ]; do sleep 0.2; done; echo 'there is no shelf' > /pav/error; false", hostDir: shelf}
	s.create(s.provisioner(fields{"volumeValidation": check.section(nil), "volumeStaging": greeting}))
	claim := s.handWritten("data", "shelf-7")
	pod := s.consumer("user", claim.Name, stays)
	s.explains("pod", s.name+"/user", "volume "+claim.Spec.VolumeName+" is not staged on node ", ": the validation pod ", " has been running for ")
	put(t, filepath.Join(shelf, "go"))
	s.explains("pod", s.name+"/user", "volume "+claim.Spec.VolumeName+" cannot be staged on node ", ": Validation pod failed: there is no shelf")
	s.remove(pod)
}
