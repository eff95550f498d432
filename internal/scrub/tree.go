package scrub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth is how deep removal descends before it moves a deeper directory to the top. Each
	// level keeps a directory open, and a pod may nest directories without end.
	maxDepth = 32
	// batch is how many names of a directory are read at once.
	batch = 512
	// lifted begins the name of a directory that was moved to the top.
	lifted = ".lifted-"
	// immutable and appendOnly are flags of files, as linux/fs.h has them.
	immutable, appendOnly = 0x10, 0x20
)

// ErrMount is wrapped by an error that names a mount point in the way of a deletion. Nothing is
// deleted through a mount.
var ErrMount = errors.New("something is mounted there")

// OpenBelow opens a directory that is an entry of another. A symbolic link is the error ELOOP. A
// mount point, even a bind mount of the same file system, is EXDEV.
func OpenBelow(dir *os.File, name string) (*os.File, error) {
	return openBelow(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openBelow opens an entry of a directory in the same way, with these flags.
func openBelow(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue // something on the machine was renamed meanwhile
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name)), nil
	}
}

// removal is the removal of one tree.
type removal struct {
	ctx context.Context
	// top is the tree's own directory, to which deep ones are moved.
	top   *os.File
	moved int
	// first is called for each entry before its removal; may be nil.
	first func(dir *os.File, name, path string) error
	// keeps says which directory at the top stays, emptied; nil for none.
	keeps func(name string) bool
	// files counts the removed entries, directories included.
	files int64
}

// RemoveTree removes a directory that is an entry of dir, with all its content. A missing entry is
// no error. It stops at the first mount point, and when ctx ends. Argument path is that of dir, for
// messages.
func RemoveTree(ctx context.Context, dir *os.File, name, path string) error {
	top, err := OpenBelow(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	path = filepath.Join(path, name)
	if err != nil {
		return explain(path, err)
	}
	r := &removal{ctx: ctx, top: top}
	err = r.empty(top, path, 0)
	if err := errors.Join(err, top.Close()); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return explain(path, err)
	}
	return nil
}

// empty removes all entries of a directory.
func (r *removal) empty(dir *os.File, path string, depth int) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return explain(path, err)
		}
		names, err := dir.Readdirnames(batch)
		if err != nil && !errors.Is(err, io.EOF) {
			return explain(path, err)
		}
		if depth == 0 && r.keeps != nil {
			// At most one directory stays. So a batch without other names means that nothing else
			// is left.
			names = slices.DeleteFunc(names, r.keeps)
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			if err := r.entry(dir, name, filepath.Join(path, name), depth+1); err != nil {
				return err
			}
		}
	}
}

// entry removes one entry of a directory, of any type.
func (r *removal) entry(dir *os.File, name, path string, depth int) error {
	if r.first != nil {
		if err := r.first(dir, name, path); err != nil {
			return err
		}
	}
	err := unfix(dir, name, func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
	switch {
	case err == nil:
		r.files++
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR):
		return explain(path, err)
	}
	if depth > maxDepth {
		return r.lift(dir, name, path)
	}
	inner, err := OpenBelow(dir, name)
	if err != nil {
		return explain(path, err)
	}
	err = r.empty(inner, path, depth)
	if err := errors.Join(err, inner.Close()); err != nil {
		return err
	}
	if err := unfix(dir, name, func() error { return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) }); err != nil {
		return explain(path, err)
	}
	r.files++
	return nil
}

// unfix calls do on an entry of a directory. If the kernel rejects it, unfix clears the blocking
// flags and calls do again. An immutable or append-only file cannot be removed, and no entry of
// such a directory can.
func unfix(dir *os.File, name string, do func() error) error {
	err := do()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	thaw(int(dir.Fd()))
	var stat unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return err
	}
	if kind := stat.Mode & unix.S_IFMT; kind == unix.S_IFREG || kind == unix.S_IFDIR { // to open anything else can have effects
		switch entry, err := openBelow(dir, name, unix.O_RDONLY|unix.O_NONBLOCK); {
		case err == nil:
			thaw(int(entry.Fd()))
			_ = entry.Close() // opened to read
		case errors.Is(err, unix.EXDEV):
			return err // no flags are cleared on a mount
		}
	}
	return do()
}

// thaw clears the flags that keep a file from being removed, if it may. The caller's next call
// fails if it may not.
func thaw(fd int) {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&(immutable|appendOnly) != 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^(immutable|appendOnly))
	}
}

// lift moves a deep directory to the top of the tree, where the removal finds it later.
func (r *removal) lift(dir *os.File, name, path string) error {
	for {
		r.moved++
		err := unfix(dir, name, func() error {
			return unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), lifted+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		})
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EEXIST):
			return explain(path, err)
		}
	}
}

// explain says why an entry could not be removed.
func explain(path string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %s is a mount point, which is not deleted through; unmount it", ErrMount, path)
	}
	return fmt.Errorf("removing %s: %w", path, err)
}
