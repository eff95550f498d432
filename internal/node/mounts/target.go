package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// EnsureBind makes sure that target shows exactly source, and that nothing else is mounted there.
// The target is read-only if asked for, or if the mount of source is read-only. A correct mount is
// left alone; any other is unmounted first. A missing target is created, but its directory must
// exist.
func EnsureBind(m Mounter, source *os.File, target string, readOnly bool) error {
	want, err := identify(int(source.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("stat %s: %w", source.Name(), err)
	}
	right, err := shows(m, target, source, want, readOnly)
	if err != nil || right {
		return err
	}
	if err := UnmountTree(m, target, nil); err != nil {
		return err
	}
	if err := makeTarget(target, want.kind == unix.S_IFDIR); err != nil {
		return err
	}
	if err := m.Bind(source, target, readOnly); err != nil {
		return err
	}
	right, err = shows(m, target, source, want, readOnly)
	if err != nil {
		return err
	}
	if !right {
		return fmt.Errorf("%s was mounted at %s, but the mount table does not show it there", source.Name(), target)
	}
	return nil
}

// Shows says whether target is a mount of exactly source, and nothing else is mounted there.
func Shows(m Mounter, target string, source *os.File, readOnly bool) (bool, error) {
	want, err := identify(int(source.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", source.Name(), err)
	}
	return shows(m, target, source, want, readOnly)
}

// Exists says whether target exists.
func Exists(target string) bool {
	_, err := identify(unix.AT_FDCWD, target, unix.AT_SYMLINK_NOFOLLOW)
	return !errors.Is(err, os.ErrNotExist)
}

// identity identifies a file, whatever its content.
type identity struct {
	device, rdev [2]uint32 // major, minor
	inode        uint64
	kind         uint16 // the file type of its mode
}

// identify gives the kernel's identity of a file. It does not ask the server of the file system: a
// server that hangs would block the caller with its locks, and keep the mount busy.
func identify(dir int, path string, flags int) (identity, error) {
	var is unix.Statx_t
	if err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, &is); err != nil {
		return identity{}, err
	}
	return identity{
		device: [2]uint32{is.Dev_major, is.Dev_minor},
		rdev:   [2]uint32{is.Rdev_major, is.Rdev_minor},
		inode:  is.Ino,
		kind:   is.Mode & unix.S_IFMT,
	}, nil
}

// shows says whether target is a mount of exactly that file. A target that cannot be read counts as
// showing something else.
func shows(m Mounter, target string, source *os.File, want identity, readOnly bool) (bool, error) {
	table, err := m.List()
	if err != nil {
		return false, err
	}
	layers := At(table, target)
	if len(layers) != 1 {
		return false, nil
	}
	if !readOnly { // a copy of a mount that is read-only is that, too
		var on unix.Statx_t
		if err := unix.Statx(int(source.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &on); err != nil {
			return false, fmt.Errorf("stat %s: %w", source.Name(), err)
		}
		mount, _ := ByID(table, int(on.Mnt_id)) //nolint:gosec // the kernel's numbers of mounts are ints
		readOnly = mount.ReadOnly
	}
	if layers[0].ReadOnly != readOnly {
		return false, nil
	}
	is, err := identify(unix.AT_FDCWD, target, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && is == want, nil //nolint:nilerr // it shows nothing that is wanted
}

func makeTarget(target string, folder bool) error {
	var err error
	if folder {
		err = os.Mkdir(target, 0o750)
	} else {
		var f *os.File
		f, err = os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create the target: %w", err)
	}
	info, err := os.Lstat(target)
	if err != nil {
		return fmt.Errorf("stat the target: %w", err)
	}
	if folder != info.IsDir() || (!folder && !info.Mode().IsRegular()) {
		return fmt.Errorf("target %s already exists as %s and is not replaced; remove it", target, info.Mode().Type())
	}
	return nil
}

// RemoveTarget removes what EnsureBind has created at target, after the unmount: an empty directory
// or an empty file, and nothing else.
func RemoveTarget(m Mounter, target string) error {
	table, err := m.List()
	if err != nil {
		return err
	}
	if found := Under(table, target); len(found) > 0 {
		return fmt.Errorf("target %s is still mounted", target)
	}
	info, err := os.Lstat(target)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stat the target: %w", err)
	}
	if info.IsDir() {
		err = unix.Rmdir(target)
	} else if info.Mode().IsRegular() && info.Size() == 0 {
		err = unix.Unlink(target)
	} else {
		return fmt.Errorf("target %s is neither an empty directory nor an empty file, so it is not removed; check its contents, then remove it", target)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "remove target", Path: filepath.Clean(target), Err: err}
	}
	return nil
}
