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
	// maxDepth is how deep a tree is gone into before what lies deeper is lifted to
	// its top: each level holds an open folder, and a pod may nest without end.
	maxDepth = 32
	// batch is how many names of a folder are read at once.
	batch = 512
	// lifted begins the name of a folder that was lifted.
	lifted = ".lifted-"
	// immutable and appendOnly are flags of files, as linux/fs.h has them.
	immutable, appendOnly = 0x10, 0x20
)

// ErrMount is what an error wraps where something is mounted on what has to go:
// nothing is deleted through a mount.
var ErrMount = errors.New("something is mounted there")

// OpenBelow opens a folder that is an entry of another. It follows no symbolic link
// and enters no mount point, be it a bind mount of the same file system: ELOOP and
// EXDEV say so.
func OpenBelow(dir *os.File, name string) (*os.File, error) {
	return openBelow(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openBelow opens an entry of a folder like that, as flags say.
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
	// top is the tree's own folder, to which deep ones are lifted.
	top   *os.File
	moved int
	// first is done with each entry before it goes; nil for nothing.
	first func(dir *os.File, name, path string) error
	// keeps says that a folder of the top stays, emptied; nil for none.
	keeps func(name string) bool
	// files counts what was removed, folders too.
	files int64
}

// RemoveTree removes an entry of dir, a folder, with all that is in it; one that does
// not exist is no error. It stops at the first mount point, and when ctx ends. path is
// dir's, for messages.
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

// empty removes all entries of a folder.
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
			// The batch may hold nothing but what stays only where that is all there is: it
			// is one folder at most.
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

// entry removes one entry of a folder, whatever it is.
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

// unfix does something with an entry of a folder, and does it again without the flags
// for which it was refused: what is immutable, or may only grow, cannot be removed, nor
// can anything from such a folder.
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
			return err // flags are taken off nothing that is mounted here
		}
	}
	return do()
}

// thaw takes the flags off a file that keep it from being removed, where that is
// allowed: whatever comes after it says if it was not.
func thaw(fd int) {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&(immutable|appendOnly) != 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^(immutable|appendOnly))
	}
}

// lift moves a deep folder to the top of the tree, where it is found later.
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

// explain words why something could not be removed.
func explain(path string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %s is a mount point, which is not deleted through; unmount it", ErrMount, path)
	}
	return fmt.Errorf("removing %s: %w", path, err)
}
