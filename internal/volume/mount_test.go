package volume_test

import (
	"slices"
	"testing"

	"tarn.dev/tarn/internal/volume"
)

func TestMountOptionsAreTheMountsOrTheFileSystems(t *testing.T) {
	attributes, others := volume.MountAttributes([]string{"noexec", "nfsvers=4.1", "ro", "noexec", "nfsvers=4.1", "ROOT"})
	if !slices.Equal(attributes, []string{"noexec", "ro"}) {
		t.Errorf("the mount has %v", attributes)
	}
	if !slices.Equal(others, []string{"nfsvers=4.1", "ROOT"}) {
		t.Errorf("the file system has %v", others)
	}
}
