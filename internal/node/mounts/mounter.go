package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
)

// Mount is one line of the mount table.
type Mount struct {
	// ID is the kernel's number of the mount, the same as statx's stx_mnt_id.
	ID int
	// Device is "major:minor" of the files on it.
	Device string
	// Root is the directory or file of its file system that is mounted.
	Root string
	// Point is the path at which it is mounted.
	Point string
	// Type is the file system's type.
	Type string
	// ReadOnly says that this mount is read-only.
	ReadOnly bool
	// Receives says that a mount made below its origin appears below it too.
	Receives bool
}

// Mounter is the interface to the kernel. Every path is absolute, and its last element is never
// followed if it is a symbolic link.
type Mounter interface {
	// Bind mounts the directory or file source, with all mounts below it, at target. The target
	// must exist and be of the same kind. A later mount below the source appears below the target.
	// An unmount at the target unmounts nothing at the source.
	Bind(source *os.File, target string, readOnly bool) error
	// Replace mounts source as Bind does, in place of the uppermost mount at target. That mount is
	// removed although it may be in use; before Linux 6.5 it is hidden. The target is never without
	// a mount.
	Replace(source *os.File, target string, readOnly bool) error
	// Unmount removes the uppermost mount at point.
	Unmount(point string) error
	// Detach hides the uppermost mount at point and all mounts below it at once, although they may
	// be in use. The kernel ends them when their last user closes them.
	Detach(point string) error
	// List returns the mount table, the older mount first.
	List() ([]Mount, error)
}

// Kernel is the real Mounter, for the mount namespace of the process.
type Kernel struct{}

var _ Mounter = Kernel{}

// Bind implements Mounter. The copy is taken from the open file, so the file that was checked is
// the one mounted. It is made read-only and a slave before it is visible. A plain bind mount would
// be a peer of its source: an unmount below one would then also unmount below the other.
func (Kernel) Bind(source *os.File, target string, readOnly bool) error {
	tree, err := Clone(source, readOnly, true)
	if err != nil {
		return fmt.Errorf("bind at %s: %w", target, err)
	}
	defer func() { _ = tree.Close() }()
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s at %s: move_mount: %w", source.Name(), target, err)
	}
	return nil
}

// Clone copies the mount of the directory or file source, with all mounts below it. The copy is a
// tree that is not attached anywhere. Closing it before it is attached ends it. With receives,
// later mounts below the source appear in it too.
func Clone(source *os.File, readOnly, receives bool) (*os.File, error) {
	fd, err := unix.OpenTree(int(source.Fd()), "",
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("copy the mount of %s: open_tree: %w", source.Name(), err)
	}
	tree := os.NewFile(uintptr(fd), source.Name())
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if receives {
		attr.Propagation = unix.MS_SLAVE
	}
	if readOnly {
		attr.Attr_set = unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = tree.Close()
		return nil, fmt.Errorf("copy the mount of %s: mount_setattr: %w", source.Name(), err)
	}
	return tree, nil
}

// List implements Mounter.
func (Kernel) List() ([]Mount, error) { return ListOf("/proc/self") }

// ListOf returns the mount table of a process, older mounts first. process is the process's
// directory in /proc. Points are as that process sees them.
func ListOf(process string) ([]Mount, error) {
	infos, err := mount.ParseMountInfo(process + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	table := make([]Mount, 0, len(infos))
	for i := range infos {
		table = append(table, Mount{
			ID:       infos[i].ID,
			Device:   fmt.Sprintf("%d:%d", infos[i].Major, infos[i].Minor),
			Root:     unescape(infos[i].Root),
			Point:    unescape(infos[i].MountPoint),
			Type:     infos[i].FsType,
			ReadOnly: slices.Contains(infos[i].MountOptions, "ro"),
			Receives: len(infos[i].OptionalFields) > 0,
		})
	}
	return table, nil
}

// CheckKernel returns a one-line error if the kernel is too old for Kernel.
func CheckKernel() error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		defer func() { _ = unix.Close(tree) }()
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	}
	switch err {
	case nil:
		return nil
	case unix.ENOSYS:
		return fmt.Errorf("the node agent needs Linux 5.12 or newer, for mount_setattr; update the node's kernel: %w", err)
	default:
		return fmt.Errorf("the node agent cannot mount; run it as root (in a pod: privileged): %w", err)
	}
}

// unescape undoes the octal escapes the kernel writes for blank, tab, newline and
// backslash in paths.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Real is path as the mount table shows it: symbolic links are resolved in every element but the
// last. A path whose directory does not exist is returned unchanged.
func Real(path string) string {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path)
	}
	return filepath.Join(parent, filepath.Base(path))
}

// At returns the mounts at path, the older first.
func At(table []Mount, path string) []Mount {
	return AtPoint(table, Real(path))
}

// AtPoint returns the mounts at a point as the table shows it, the older first. No server is asked
// for the names on the path, and the table may be that of another process.
func AtPoint(table []Mount, point string) []Mount {
	return filter(table, func(m Mount) bool { return m.Point == point })
}

func filter(table []Mount, keep func(Mount) bool) []Mount {
	var found []Mount
	for _, m := range table {
		if keep(m) {
			found = append(found, m)
		}
	}
	return found
}

// Under returns the mounts at path and below it, the older first.
func Under(table []Mount, path string) []Mount {
	path = Real(path)
	return filter(table, func(m Mount) bool { return Inside(m.Point, path) })
}

// Inside says whether path is folder or lies below it. Both must be clean.
func Inside(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// ByID returns the mount with that number.
func ByID(table []Mount, id int) (Mount, bool) {
	for _, m := range table {
		if m.ID == id {
			return m, true
		}
	}
	return Mount{}, false
}
