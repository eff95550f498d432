package resultdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/volume"
)

// WrongVolumeError says what is wrong with /pav/volume, for the author of the staging pod. Only
// another staging pod can change it.
type WrongVolumeError struct {
	Problem string
	// Dead says that it is on a mount whose server has ended.
	Dead bool
}

// Error implements error.
func (e *WrongVolumeError) Error() string { return e.Problem }

func wrong(format string, args ...any) error {
	return &WrongVolumeError{Problem: fmt.Sprintf(format, args...)}
}

// Volume describes /pav/volume.
type Volume struct {
	// File keeps it open as a place in the file tree (O_PATH).
	File *os.File
	// Path is its path on the node, with all symbolic links resolved.
	Path string
	// Device is "major:minor" of its file system.
	Device string
	// Rdev is "major:minor" of a block device; empty for a directory.
	Rdev string
	// MountID is the number of its mount.
	MountID int
}

// resolveTries limits the attempts to resolve a path while the pod renames directories on it: the
// kernel then fails with EAGAIN.
const resolveTries = 16

// OpenVolume opens /pav/volume of a stage; stage is the directory that contains "pav". Symbolic
// links are followed as the pod sees them: the kernel takes the stage's directory as the root of
// the file tree. So "/pav/x" is the container's path, and no link, "..", or race leads out.
//
// The volume must be a directory or, with block set, a block device of exactly capacity bytes.
// Otherwise the error is a *WrongVolumeError.
func OpenVolume(stage string, block bool, capacity int64) (*Volume, error) {
	root, err := openFolder(stage)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	file, err := resolve(root)
	if err != nil {
		return nil, err
	}
	v, err := examine(file, filepath.Join(root.Name(), "pav"))
	if err == nil {
		err = v.check(block, capacity)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return v, nil
}

func resolve(root *os.File) (*os.File, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	var fd int
	var err error
	for range resolveTries {
		fd, err = unix.Openat2(int(root.Fd()), "pav/volume", how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), "/pav/volume"), nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		info, statErr := os.Lstat(filepath.Join(root.Name(), "pav", "volume"))
		if statErr == nil && info.Mode()&os.ModeSymlink != 0 {
			return nil, wrong("/pav/volume is a symbolic link that leads to nothing below /pav")
		}
		return nil, wrong("/pav/volume does not exist; the staging pod must create it before it ends or creates /pav/ready")
	case errors.Is(err, unix.ELOOP):
		return nil, wrong("/pav/volume leads through too many symbolic links")
	case errors.Is(err, unix.ENOTCONN):
		return nil, &WrongVolumeError{Problem: "/pav/volume is a mount whose server has ended", Dead: true}
	default:
		return nil, fmt.Errorf("open /pav/volume: %w", err)
	}
}

// examine finds out where the file is, and on which file system.
func examine(file *os.File, pav string) (*Volume, error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	if err != nil {
		return nil, fmt.Errorf("find the path of /pav/volume: %w", err)
	}
	real, err := filepath.EvalSymlinks(pav)
	if err != nil {
		return nil, fmt.Errorf("find the path of /pav: %w", err)
	}
	if path != real && !strings.HasPrefix(path, real+"/") {
		return nil, wrong("/pav/volume is a symbolic link that leads out of /pav")
	}
	var stat unix.Statx_t
	err = unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &stat)
	if errors.Is(err, unix.ENOTCONN) {
		return nil, &WrongVolumeError{Problem: "/pav/volume is a mount whose server has ended", Dead: true}
	}
	if err != nil {
		return nil, fmt.Errorf("stat /pav/volume: %w", err)
	}
	v := &Volume{
		File:    file,
		Path:    path,
		Device:  fmt.Sprintf("%d:%d", stat.Dev_major, stat.Dev_minor),
		MountID: int(stat.Mnt_id),
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFBLK:
		v.Rdev = fmt.Sprintf("%d:%d", stat.Rdev_major, stat.Rdev_minor)
	default:
		return nil, wrong("/pav/volume is neither a directory nor a block device")
	}
	return v, nil
}

func (v *Volume) check(block bool, capacity int64) error {
	if !block {
		if v.Rdev != "" {
			return wrong("/pav/volume is a block device, but volumeMode is Filesystem, which needs a directory")
		}
		return nil
	}
	if v.Rdev == "" {
		return wrong("/pav/volume is a directory, but volumeMode is Block, which needs a block device")
	}
	size, err := DeviceSize(v.Rdev)
	if err != nil {
		return wrong("/pav/volume is block device %s, whose size cannot be read: %v", v.Rdev, err)
	}
	if size != capacity {
		return wrong("/pav/volume is a block device of %s, but the volume's capacity is %s; they must be the same", volume.Size(size), volume.Size(capacity))
	}
	return nil
}

// DeviceSize is the size in bytes of the block device "major:minor". It reads sysfs, so that no
// device chosen by a pod is ever opened.
func DeviceSize(rdev string) (int64, error) {
	data, err := os.ReadFile("/sys/dev/block/" + rdev + "/size")
	if err != nil {
		return 0, err
	}
	const sector = 512 // the unit of sysfs, whatever the device's own is
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return sectors * sector, err
}
