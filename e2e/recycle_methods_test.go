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

func TestAPoolKeepsWhatItsSetSaysThenRecyclesItAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s, shelf := shelving(t, "kept-recycled")
	s.class(corev1.PersistentVolumeReclaimDelete)
	set := s.pool(1, 2, func(set *tarn.PersistentVolumeSet) {
		set.Annotations = map[string]string{tarn.AnnotationRetention: "1h"}
		set.Spec.Template.Metadata.Annotations = map[string]string{tarn.AnnotationRecycle: string(tarn.RecycleFiles)}
		set.Spec.Template.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	s.filled(set, 1)
	volume := &corev1.PersistentVolume{ObjectMeta: named(s.volumes(isSpare)[0].Name)}
	s.remove(s.used("data", volume))
	s.await("volume "+volume.Name+" to be in the trash", func() (bool, string) {
		err := s.get(volume)
		return err == nil && volume.Labels[tarn.LabelTrashedUntil] != "" && volume.Status.Phase == corev1.VolumeReleased,
			fmt.Sprintf("it is %s, labels %v (%v)", volume.Status.Phase, volume.Labels, err)
	})
	if text := readNote(t, shelf, volume.Spec.CSI.VolumeHandle); text != "data\n" {
		t.Errorf("in the trash, its note reads %q", text)
	}
	mustTool(t, 0, "", "trash", "purge", volume.Name, "--yes")
	s.certified(volume, tarn.RecycleFiles)
	if left := entriesOf(t, filepath.Join(shelf, volume.Spec.CSI.VolumeHandle)); len(left) != 0 {
		t.Errorf("recycled, it holds %q", left)
	}
	s.filled(set, 2)

	s.remove(set) // both go with it, of policy Retain as they are: one was never drawn, the other is known to be empty
	s.noVolumes()
	if left := entriesOf(t, shelf); len(left) > 0 {
		t.Errorf("the set is gone, and left on the shelf: %q", left)
	}
}

func TestADiscardedSecretIsNowhereOnTheDevice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, write string
		mode        corev1.PersistentVolumeMode
	}{
		{"of a file system", `yes "` + secret + `" | head -c 10000000 >/data/note; sync`, corev1.PersistentVolumeFilesystem},
		{"of a block volume", `yes "` + secret + `" | head -c 10000000 | dd of=/dev/data bs=1M conv=fsync`, corev1.PersistentVolumeBlock},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "discard")
			device, image := s.disk()
			volume := s.recycled(device, tarn.RecycleDiscard, c.mode)
			a := s.tenant("a", c.mode)
			pod := s.consumer("a", a.Name, c.write, func(p *corev1.Pod) {
				if o := &p.Spec.Containers[0]; c.mode == corev1.PersistentVolumeBlock {
					o.VolumeMounts, o.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
				}
			})
			s.succeeded(pod)
			if !holds(t, image, secret) {
				t.Fatal("the secret was never on the device")
			}
			s.remove(pod)
			s.remove(a)
			if cert := s.certified(volume, tarn.RecycleDiscard); cert.Bytes < 10000000 || cert.SampleSHA256 == "" {
				t.Errorf("the certificate says %+v", cert)
			}
			if holds(t, image, secret) { // a loop device punches holes for discarded blocks
				t.Error("the secret is still on the device")
			}
		})
	}
}
