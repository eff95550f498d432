package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Unmount implements Mounter.
func (Kernel) Unmount(point string) error { return unmount("unmount", point, 0) }

// Detach implements Mounter.
func (Kernel) Detach(point string) error { return unmount("detach", point, unix.MNT_DETACH) }

// unmount takes the uppermost mount off a point of a mount table. Such a point has no
// symbolic links, but below a volume whoever writes there can put one in the place of a
// folder: then a mount of that name elsewhere on the machine would go, so none is followed.
func unmount(op, point string, flags int) error {
	parent, err := openPlace(filepath.Dir(point), unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return &os.PathError{Op: op, Path: point, Err: err}
	}
	defer func() { _ = parent.Close() }()
	name := filepath.Join(OwnFiles, strconv.Itoa(int(parent.Fd())), filepath.Base(point))
	if err := unix.Unmount(name, unix.UMOUNT_NOFOLLOW|flags); err != nil {
		return &os.PathError{Op: op, Path: point, Err: err}
	}
	return nil
}

// UnmountTree unmounts every layer of everything mounted at path and below it, the
// deepest first, and looks at the mount table until nothing is left. With detach
// not nil, a mount that is busy is detached instead, and detach is told which;
// else it is an error.
func UnmountTree(m Mounter, path string, detach func(point string, busy error)) error {
	left := -1
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
			return fmt.Errorf("%d mounts at or below %s do not go away: %s", len(found), path, points(found))
		}
		left = len(found)
		if err := unmountOnce(m, found, detach); err != nil {
			return err
		}
	}
}

// unmountOnce unmounts one layer of each, the deepest and newest first. A mount
// that is already gone went with another one.
func unmountOnce(m Mounter, found []Mount, detach func(string, error)) error {
	order := make([]Mount, len(found))
	for i := range found {
		order[i] = found[len(found)-1-i]
	}
	sort.SliceStable(order, func(i, j int) bool {
		return strings.Count(order[i].Point, "/") > strings.Count(order[j].Point, "/")
	})
	var failed error
	for _, one := range order {
		err := m.Unmount(one.Point)
		if err == nil || gone(err) {
			continue
		}
		if detach == nil {
			failed = errors.Join(failed, err)
			continue
		}
		detach(one.Point, err)
		if err := m.Detach(one.Point); err != nil && !gone(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func gone(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, os.ErrNotExist)
}

func points(found []Mount) string {
	const shown = 3
	var list []string
	for i, m := range found {
		if i == shown {
			list = append(list, "...")
			break
		}
		list = append(list, m.Point)
	}
	return strings.Join(list, ", ")
}
