//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// The volumes need no pods: the controller makes them itself.
func TestAClaimIsServedFromAPoolOfFolders(t *testing.T) {
	t.Parallel()
	s := begin(t, "pool-folders")
	s.needsHostPath()
	s.folders(func(class *storagev1.StorageClass) {
		class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	})
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	set := s.pool(2, 3, func(set *tarn.PersistentVolumeSet) { set.Spec.Template.Spec.AccessModes = once })
	s.filled(set, 2)
	spares := map[string]string{}
	for _, vol := range s.volumes(isSpare) {
		spares[vol.Name] = vol.Spec.Local.Path
	}

	claim := s.claimWith("data", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes, claim.Spec.Resources.Requests = once, size("1Mi")
	})
	pod := s.consumer("writer", claim.Name, "echo drawn > /data/note")
	s.succeeded(pod)
	volume := s.volumeOf(s.bound(claim))
	folder := spares[volume.Name]
	if folder == "" || folder != volume.Spec.Local.Path {
		t.Fatalf("the claim has got volume %s in %s, want one of the spares %v", volume.Name, volume.Spec.Local.Path, spares)
	}
	if text, err := os.ReadFile(filepath.Join(folder, "note")); err != nil || string(text) != "drawn\n" {
		t.Errorf("the note on the volume reads %q (%v)", text, err)
	}
	s.filled(set, 2)
	for _, vol := range s.volumes(isSpare) {
		spares[vol.Name] = vol.Spec.Local.Path
	}

	s.remove(pod)
	s.remove(claim)
	s.gone(volume)
	s.remove(set)
	s.noVolumes()
	for name, path := range spares {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("volume %s is gone, and %s is not (%v)", name, path, err)
		}
	}
}
