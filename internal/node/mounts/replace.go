package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Replace implements Mounter.
func (Kernel) Replace(source *os.File, target string, readOnly bool) error {
	tree, err := Clone(source, readOnly, true)
	if err != nil {
		return fmt.Errorf("bind at %s: %w", target, err)
	}
	defer func() { _ = tree.Close() }()
	top, err := openPlace(target, 0) // the kubelet's directory may lie behind symbolic links
	if err != nil {
		return fmt.Errorf("bind %s: %w", source.Name(), err)
	}
	defer func() { _ = top.Close() }()
	return Put(tree, top, OwnFiles)
}

// OwnFiles is the directory that shows the process's open files by their numbers.
const OwnFiles = "/proc/self/fd"

// MovedError says that a path no longer leads to the expected mount.
type MovedError struct{ Point string }

// Error implements error.
func (e *MovedError) Error() string {
	return e.Point + " no longer leads to what was mounted there; its directories were moved or linked meanwhile"
}

// Open opens a mount of a table as a place in the file tree (O_PATH), in the mount namespace of the
// calling thread. It must be the uppermost mount at its point.
//
// A point contains no symbolic links. A process with write access to a directory above could put a
// link or another directory there. So Open follows no link, and checks the mount's number.
func (m Mount) Open() (*os.File, error) {
	place, err := openPlace(m.Point, unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, &MovedError{m.Point}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", m.Point, err)
	}
	var stat unix.Statx_t
	// Do not ask the server of the mount: it may have ended.
	err = unix.Statx(int(place.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &stat)
	if err == nil && int(stat.Mnt_id) != m.ID { //nolint:gosec // a number of the same kernel
		err = &MovedError{m.Point}
	}
	if err != nil {
		_ = place.Close()
		return nil, err
	}
	return place, nil
}

func openPlace(point string, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, point, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), point), nil
}

// moveMountBeneath is the flag of move_mount that puts a mount below the uppermost one at a point
// (Linux 6.5).
const moveMountBeneath = 0x200

// Put mounts a tree in place of an open mount. That mount is removed although it may be in use. Put
// acts in the mount namespace of the calling thread, whose open files are in the directory files. A
// kernel that cannot exchange mounts keeps the old one, hidden below the new one. There is always a
// mount.
//
// Both steps use the open file and no path. A path would be resolved twice. A process that may
// rename a directory above the mount could lead the second resolution to another mount. A container
// could so lose the read-only mounts that protect /proc/sys.
func Put(tree, old *os.File, files string) error {
	return put(tree, old, files, moveMountBeneath)
}

func put(tree, old *os.File, files string, beneath int) error {
	move := func(flags int) error {
		return unix.MoveMount(int(tree.Fd()), "", int(old.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|flags)
	}
	if move(beneath) == nil {
		if err := unix.Unmount(filepath.Join(files, strconv.Itoa(int(old.Fd()))), unix.MNT_DETACH); err != nil {
			return &os.PathError{Op: "detach", Path: old.Name(), Err: err}
		}
		return nil
	}
	if err := move(0); err != nil {
		return fmt.Errorf("mount %s at %s: move_mount: %w", tree.Name(), old.Name(), err)
	}
	return nil
}
