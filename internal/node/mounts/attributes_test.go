package mounts

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/nodetest"
	"tarn.dev/tarn/internal/volume"
)

func TestTheLaterOfTwoMountOptionsCounts(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []string
		want    Attributes
	}{
		{"none", nil, 0},
		{"each has its bit", []string{"ro", "noexec"}, unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC},
		{"the later counts", []string{"ro", "noexec", "rw"}, unix.MOUNT_ATTR_NOEXEC},
		{"the times of access are one field", []string{"noatime", "strictatime"}, unix.MOUNT_ATTR_STRICTATIME},
		{"those of file systems are none", []string{"nfsvers=4.1", "defaults"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := AttributesOf(c.options); got != c.want {
				t.Errorf("AttributesOf(%q) = %#x, want %#x", c.options, got, c.want)
			}
		})
	}
}

func TestEveryMountOptionThatIsTheMountsHasAnAttribute(t *testing.T) {
	for _, known := range attributeOptions {
		if of, _ := volume.MountAttributes([]string{known.name}); len(of) != 1 {
			t.Errorf("%s is not the mount's for package volume", known.name)
		}
	}
}

func TestABindMountHasItsAttributesAndIsExchangedForOneWithOthers(t *testing.T) {
	top := nodetest.Tmpfs(t)
	source, target := mkdir(t, top, "volume"), filepath.Join(top, "target")
	write(t, filepath.Join(source, "file"), "hello")
	for _, options := range [][]string{
		{"noexec", "nosuid", "nodev", "noatime", "nosymfollow"}, {"ro", "nodiratime"}, {"strictatime"}, nil,
	} {
		want := AttributesOf(options)
		if err := EnsureBind(Kernel{}, open(t, source), target, want); err != nil {
			t.Fatalf("%q: %v", options, err)
		}
		var have unix.Statfs_t
		if err := unix.Statfs(target, &have); err != nil {
			t.Fatal(err)
		}
		for _, flag := range []struct {
			attribute Attributes
			statfs    int64
		}{
			{unix.MOUNT_ATTR_RDONLY, unix.ST_RDONLY}, {unix.MOUNT_ATTR_NOEXEC, unix.ST_NOEXEC}, {unix.MOUNT_ATTR_NOSUID, unix.ST_NOSUID},
			{unix.MOUNT_ATTR_NODEV, unix.ST_NODEV}, {unix.MOUNT_ATTR_NOATIME, unix.ST_NOATIME}, {unix.MOUNT_ATTR_NODIRATIME, unix.ST_NODIRATIME},
		} {
			if wanted := want&flag.attribute != 0; wanted && have.Flags&flag.statfs == 0 {
				t.Errorf("%q: the mount's flags are %#x, without %#x", options, have.Flags, flag.statfs)
			}
		}
		if readOnly := have.Flags&unix.ST_RDONLY != 0; readOnly != (want&ReadOnly != 0) {
			t.Errorf("%q: the mount is read-only: %t", options, readOnly)
		}
		if found := mountsUnder(t, target); len(found) != 1 {
			t.Errorf("%q: %d mounts at the target, want one", options, len(found))
		}
	}
}
