package mounts

import (
	"golang.org/x/sys/unix"
)

// Attributes are what the kernel keeps for each mount, whatever file system it shows:
// bits MOUNT_ATTR_* of mount_setattr.
type Attributes uint64

// ReadOnly says that a mount may not be written through.
const ReadOnly Attributes = unix.MOUNT_ATTR_RDONLY

// attributeOptions are the mount options of which an attribute is made, as mount(8) and
// the mount table name them.
var attributeOptions = []struct {
	name       string
	set, clear Attributes
}{
	{"ro", unix.MOUNT_ATTR_RDONLY, 0},
	{"rw", 0, unix.MOUNT_ATTR_RDONLY},
	{"nosuid", unix.MOUNT_ATTR_NOSUID, 0},
	{"suid", 0, unix.MOUNT_ATTR_NOSUID},
	{"nodev", unix.MOUNT_ATTR_NODEV, 0},
	{"dev", 0, unix.MOUNT_ATTR_NODEV},
	{"noexec", unix.MOUNT_ATTR_NOEXEC, 0},
	{"exec", 0, unix.MOUNT_ATTR_NOEXEC},
	{"noatime", unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME},
	{"strictatime", unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME},
	{"relatime", 0, unix.MOUNT_ATTR__ATIME},
	{"atime", 0, unix.MOUNT_ATTR__ATIME},
	{"nodiratime", unix.MOUNT_ATTR_NODIRATIME, 0},
	{"diratime", 0, unix.MOUNT_ATTR_NODIRATIME},
	{"nosymfollow", unix.MOUNT_ATTR_NOSYMFOLLOW, 0},
	{"symfollow", 0, unix.MOUNT_ATTR_NOSYMFOLLOW},
}

// AttributesOf gives the attributes that a list of mount options comes to, a later one
// against an earlier one. Options of file systems count for nothing.
func AttributesOf(options []string) Attributes {
	var a Attributes
	for _, option := range options {
		for _, known := range attributeOptions {
			if option == known.name {
				a = a&^known.clear | known.set
			}
		}
	}
	return a
}

// shownBy says whether a mount that has the attributes is has all that are wanted, and
// is writable where that is wanted. It may have more: what its source had, a copy has.
// The table does not show strictatime, so that is taken on trust.
func (want Attributes) shownBy(is Attributes) bool {
	want &^= unix.MOUNT_ATTR_STRICTATIME
	return is&want == want && is&ReadOnly == want&ReadOnly
}

// forKernel is the change that gives a mount the attributes, and leaves it those it has.
func (want Attributes) forKernel() (set, clear uint64) {
	if want&unix.MOUNT_ATTR__ATIME != 0 {
		clear = unix.MOUNT_ATTR__ATIME // one field: it is set as a whole
	}
	return uint64(want), clear
}
