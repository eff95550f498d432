package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/hangguard"
)

// Unmount implements Mounter.
func (Kernel) Unmount(point string) error { return unmount("unmount", point, 0) }

// Detach implements Mounter.
func (Kernel) Detach(point string) error { return unmount("detach", point, unix.MNT_DETACH) }

// unmount unmounts the uppermost mount at a point of a mount table.
func unmount(op, point string, flags int) error {
	parent, err := openParent(op, point)
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	return unmountIn(parent, op, point, flags)
}

// openParent opens the directory of a point in a mount table, and looks up the point. It follows no
// symbolic links, because a real point contains none. A process with write access to the volume
// could put a link in place of a directory, and a mount of that name elsewhere on the machine would
// be unmounted.
//
// The servers of the file systems above the point are asked for the names on the path.
func openParent(op, point string) (*os.File, error) {
	parent, err := openPlace(filepath.Dir(point), unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, &os.PathError{Op: op, Path: point, Err: err}
	}
	// The last name is looked up here too, so that the unmount itself need not wait for a server.
	// The unmount reports any error.
	fd, err := unix.Openat2(int(parent.Fd()), filepath.Base(point), &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC})
	if err == nil {
		_ = unix.Close(fd)
	}
	return parent, nil
}

func unmountIn(parent *os.File, op, point string, flags int) error {
	name := filepath.Join(OwnFiles, strconv.Itoa(int(parent.Fd())), filepath.Base(point))
	if err := unix.Unmount(name, unix.UMOUNT_NOFOLLOW|flags); err != nil {
		return &os.PathError{Op: op, Path: point, Err: err}
	}
	return nil
}

// UnmountTree unmounts every layer of every mount at path and below it, the deepest first. It
// repeats this until the mount table shows none. If detach is not nil, a busy mount is detached
// instead, and reported to detach. Otherwise a busy mount is an error.
func UnmountTree(m Mounter, path string, detach func(point string, busy error)) error {
	left := -1
	var failed error
	for {
		table, err := m.List()
		if err != nil {
			return err
		}
		found := Under(table, path)
		if len(found) == 0 {
			return nil
		}
		if left >= 0 && len(found) >= left {
			if failed != nil {
				return failed
			}
			return fmt.Errorf("%d mounts at or below %s cannot be unmounted: %s", len(found), path, points(found))
		}
		left = len(found)
		failed = unmountOnce(m, found, detach)
		if failed != nil && detach == nil {
			return failed
		}
	}
}

// unmountOnce unmounts one layer of each mount, the deepest and newest first. A mount that no
// longer exists was unmounted with another one. After a mount whose path needs a server that does
// not answer, only uppermost mounts are tried. Detaching one of them also detaches all mounts below
// it.
func unmountOnce(m Mounter, found []Mount, detach func(string, error)) error {
	order := slices.Clone(found)
	slices.Reverse(order)
	slices.SortStableFunc(order, func(a, b Mount) int { return depth(b) - depth(a) })
	uppermost := depth(order[len(order)-1])
	var failed error
	for _, one := range order {
		if errors.Is(failed, hangguard.ErrNoAnswer) && depth(one) > uppermost {
			continue
		}
		err := m.Unmount(one.Point)
		if err == nil || gone(err) {
			continue
		}
		if detach != nil {
			busy := err
			if err = m.Detach(one.Point); err == nil || gone(err) {
				detach(one.Point, busy)
				continue
			}
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func depth(m Mount) int { return strings.Count(m.Point, "/") }

func gone(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, os.ErrNotExist)
}

func points(found []Mount) string {
	const shown = 3
	var list []string
	for _, m := range found[:min(shown, len(found))] {
		list = append(list, m.Point)
	}
	if len(found) > shown {
		list = append(list, "...")
	}
	return strings.Join(list, ", ")
}
