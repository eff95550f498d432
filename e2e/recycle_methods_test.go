//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// asks requests recycling of a volume by a method.
func (s *scenario) asks(volume *corev1.PersistentVolume, method tarn.RecycleMethod) {
	s.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+tarn.AnnotationRecycle+`":"`+string(method)+`"}}}`))
	if err := suite.live.Patch(s.ctx, volume, patch); err != nil {
		s.t.Fatal(err)
	}
}

// used makes a claim of the case's class that takes a volume and leaves a note on it.
func (s *scenario) used(name string, volume *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := s.claim(name)
	pod := s.consumer(name, name, "echo "+name+" > /data/note")
	s.succeeded(pod)
	s.remove(pod)
	if claim = s.bound(claim); volume.Name != "" && claim.Spec.VolumeName != volume.Name {
		s.t.Fatalf("claim %s has got volume %s, want %s", name, claim.Spec.VolumeName, volume.Name)
	}
	volume.Name = claim.Spec.VolumeName
	return claim
}

// certified waits until a volume is available again after a method.
func (s *scenario) certified(volume *corev1.PersistentVolume, method tarn.RecycleMethod) tarn.RecycleCertificate {
	s.t.Helper()
	var cert tarn.RecycleCertificate
	s.await("volume "+volume.Name+" to be recycled by "+string(method), func() (bool, string) {
		if err := s.get(volume); err != nil {
			return false, err.Error()
		}
		if volume.Annotations[tarn.AnnotationRecycled] != "" {
			cert = s.certificate(volume)
		}
		return cert.Method == method && volume.Status.Phase == corev1.VolumeAvailable && volume.Spec.ClaimRef == nil,
			fmt.Sprintf("it is %s %q, annotations %v", volume.Status.Phase, volume.Status.Message, volume.Annotations)
	})
	return cert
}

// verified wants the certificate of a provisioner whose result Tarn has read back.
func (s *scenario) verified(cert tarn.RecycleCertificate, bytes int64) {
	s.t.Helper()
	if cert.Provisioner != s.name || cert.Image != "busybox:1.36" || cert.Verifier == "" || len(cert.SampleSHA256) != 64 || cert.Bytes != bytes || cert.Found != 0 {
		s.t.Errorf("the certificate says %+v, want the provisioner's word for %d bytes, verified by Tarn", cert, bytes)
	}
}

func TestAProvisionerEmptiesItsVolumeAndMakesItAnew(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "own-recycling")
	s.needsThisMachine()
	s.step = 2 * soon // nine pods run one after another
	sections := shelved(shelf)
	sections["volumeRecycling"] = script{hostDir: shelf, // at first it claims success without having done the work
		text: "set -e; cd /host; if test -e {{ method }}; then rm -f {{ handle|tobash }}/note; fi; touch {{ method }}",
	}.section(fields{"methods": []any{"Files"}})
	s.create(s.provisioner(sections))
	s.class(corev1.PersistentVolumeReclaimRetain)
	volume := &corev1.PersistentVolume{}
	a := s.used("a", volume)
	s.asks(volume, tarn.RecycleFiles)
	s.remove(a)
	cert := s.certified(volume, tarn.RecycleFiles)
	s.told(volume, "VolumeFailedRecycle", s.name, "Tarn's check of the volume failed", `it has "note"`)
	s.verified(cert, 0)
	if err := os.Remove(filepath.Join(shelf, "Files")); err != nil {
		t.Errorf("its pod has left no trace: %v", err)
	}

	s.asks(volume, tarn.RecycleRecreate)
	s.remove(s.used("b", volume))
	s.verified(s.certified(volume, tarn.RecycleRecreate), 1<<20)
	if left := entriesOf(t, filepath.Join(shelf, volume.Spec.CSI.VolumeHandle)); len(left) != 0 {
		t.Errorf("made anew, it holds %q", left)
	}

	s.reclaimed(volume, shelf)
}

// reclaimed gives an unclaimed volume policy Delete and deletes it. It wants nothing to be left on
// its shelf.
func (s *scenario) reclaimed(volume *corev1.PersistentVolume, shelf string) {
	s.t.Helper()
	s.kubectl("patch", "pv", volume.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	s.remove(volume)
	if left := entriesOf(s.t, shelf); len(left) != 0 {
		s.t.Errorf("left on the shelf: %q", left)
	}
}
