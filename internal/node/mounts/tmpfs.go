package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Tmpfs mounts at folder a tmpfs of at most size bytes that only root can read. Since Linux 6.4 its
// content is not swapped to a disk either.
func Tmpfs(folder string, size int64) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := fmt.Sprintf("size=%d,mode=0700", size)
	err := unix.Mount("tmpfs", folder, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", folder, "tmpfs", flags, options)
	}
	if err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: folder, Err: err}
	}
	return nil
}
