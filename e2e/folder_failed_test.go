//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// The provisioner does not follow a link in place of the directory, as long as the link is there.
func TestAFolderThatCannotBeDeletedIsAFailedVolumeUntilItCan(t *testing.T) {
	t.Parallel()
	s := begin(t, "folder-failed")
	s.needsHostPath()
	s.folders(func(*storagev1.StorageClass) {})
	claim := s.bound(s.claim("data"))
	volume := s.volumeOf(claim)
	folder := volume.Spec.Local.Path
	if err := errors.Join(os.Remove(folder), os.Symlink(t.TempDir(), folder)); err != nil {
		t.Fatal(err)
	}
	s.remove(claim)
	const why = "check what it is, and delete it by hand"
	s.told(volume, "VolumeFailedDelete", folder, why)
	s.await("volume "+volume.Name+" to be Failed", func() (bool, string) {
		err := s.get(volume)
		is := volume.Status
		return err == nil && is.Phase == corev1.VolumeFailed && is.Reason == "VolumeFailedDelete" && strings.Contains(is.Message, folder) && strings.Contains(is.Message, why),
			fmt.Sprintf("it is %s, %s: %q (%v)", is.Phase, is.Reason, is.Message, err)
	})
	s.explains("volume", volume.Name, "is Failed: ", folder, why)
	if err := errors.Join(os.Remove(folder), os.Mkdir(folder, 0o755)); err != nil {
		t.Fatal(err)
	}
	s.gone(volume)
	if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume is gone, its folder is not (%v)", err)
	}
}
