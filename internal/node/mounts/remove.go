package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxDepth is how many directories RemoveTree opens at most, below a process's limit of open files.
// Deeper ones are moved up first.
const maxDepth = 64

// RemoveTree removes the directory and all its content, but nothing in a mount. It opens each
// directory relative to its parent, and the kernel then crosses no mount, even of the same file
// system, and follows no symbolic link.
//
// A mount in the way is an error that wraps unix.EXDEV or unix.EBUSY, and its content is untouched.
// A directory that does not exist is no error.
func RemoveTree(folder string) error {
	parent, err := openFolder(unix.AT_FDCWD, filepath.Dir(folder), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	name := filepath.Base(folder)
	top, err := openFolder(int(parent.Fd()), name, noCrossing)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", folder, err)
	}
	defer func() { _ = top.Close() }()
	r := remover{top: top}
	if err := r.empty(top, 0); err != nil {
		return fmt.Errorf("remove %s: %w", folder, err)
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "remove", Path: folder, Err: err}
	}
	return nil
}

// noCrossing makes the kernel reject mounts, symbolic links and "..".
const noCrossing = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS

type remover struct {
	top   *os.File
	count int
}

// empty removes all that is in dir. It reads from the start again after each batch,
// because removing entries moves the others, and moveUp adds to the top one.
func (r *remover) empty(dir *os.File, depth int) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := r.remove(dir, name, depth); err != nil {
				return err
			}
		}
	}
}

func (r *remover) remove(dir *os.File, name string, depth int) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &os.PathError{Op: "unlink", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	sub, openErr := openFolder(int(dir.Fd()), name, noCrossing)
	if openErr != nil {
		return &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: errors.Join(err, openErr)}
	}
	defer func() { _ = sub.Close() }()
	if depth >= maxDepth {
		return r.moveUp(dir, name)
	}
	if err := r.empty(sub, depth+1); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "rmdir", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return nil
}

// moveUp moves a directory that is too deep into the top one, where RemoveTree reaches it later.
func (r *remover) moveUp(dir *os.File, name string) error {
	for {
		r.count++
		up := fmt.Sprintf(".deep-%d", r.count)
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), up, unix.RENAME_NOREPLACE)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		return err
	}
}

func openFolder(dir int, name string, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: resolve,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open directory", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
