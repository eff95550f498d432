package volume

import "slices"

// mountAttributes are the mount options that the kernel keeps for each mount, so that
// a bind mount can have them whatever the file system below it is; those that only
// name the default stand there with it.
var mountAttributes = []string{
	"ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "strictatime", "nosymfollow",
	"defaults", "rw", "suid", "dev", "exec", "atime", "diratime", "symfollow",
}

// MountAttributes gives those of a volume's mount options that the kernel keeps for
// each mount, each once, in their order; others are the options of a file system, for
// whoever mounts it.
func MountAttributes(options []string) (attributes, others []string) {
	for _, option := range options {
		list := &others
		if slices.Contains(mountAttributes, option) {
			list = &attributes
		}
		if !slices.Contains(*list, option) {
			*list = append(*list, option)
		}
	}
	return attributes, others
}
