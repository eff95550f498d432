package scrub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	// filling is the directory of the files that take all free space.
	filling = ".tarn-scrub"
	// chunk is how much is written at once.
	chunk = 4 << 20
	// sampleSize is how many bytes are read back at once. The others are how many samples are read,
	// of a device and of each file that fills a file system.
	sampleSize, samplesOfDevice, samplesOfFile = 64 << 10, 256, 8
)

// overwritable are the file systems that overwrite a file in place, and keep no other copy of its
// content.
var overwritable = []string{"ext2", "ext3", "ext4", "xfs"}

// zeroed overwrites each file in place and removes it. It then overwrites the free space, because
// that contains files deleted earlier.
func zeroed(ctx context.Context, top *os.File, cert *tarnv1.RecycleCertificate) error {
	if err := wholeFileSystem(top); err != nil {
		return err
	}
	zeros, err := aligned(chunk)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(zeros) }()
	// Remove the zeros of an earlier attempt: this attempt needs the space.
	if err := RemoveTree(ctx, top, filling, ""); err != nil {
		return err
	}
	if err := emptied(ctx, top, cert, overwriter(ctx, zeros)); err != nil {
		return err
	}
	f, err := newFiller(ctx, top, zeros)
	if err != nil {
		return err
	}
	if err := errors.Join(f.fill(), f.close()); err != nil {
		return err
	}
	cert.Bytes = f.covered.total()
	if err := RemoveTree(ctx, top, filling, ""); err != nil {
		return err
	}
	if err := emptied(ctx, top, cert, nil); err != nil {
		return err
	}
	cert.SampleSHA256 = f.read.String()
	return nil
}

// wholeFileSystem rejects a file system that cannot be overwritten, and a volume that is only a
// part of one, such as a directory of a node's disk.
func wholeFileSystem(top *os.File) error {
	var attributes unix.Statx_t
	if err := unix.Statx(int(top.Fd()), "", unix.AT_EMPTY_PATH, 0, &attributes); err != nil {
		return fmt.Errorf("asking where the volume is mounted: %w", err)
	}
	if attributes.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return fmt.Errorf("the volume is a directory of a file system that it shares, so its free space cannot be overwritten: use %s", tarnv1.RecycleFiles)
	}
	m, err := mountOf(top)
	switch {
	case err != nil:
		return err
	case m.root != "/":
		return fmt.Errorf("the volume is directory %s of a file system that it shares, so its free space cannot be overwritten: use %s", m.root, tarnv1.RecycleFiles)
	case !slices.Contains(overwritable, m.kind):
		return fmt.Errorf("file system %s does not overwrite files in place: use %s, or one of %s", m.kind, tarnv1.RecycleFiles, strings.Join(overwritable, ", "))
	}
	return nil
}

// overwriter gives a function that prepares an entry for its removal. It writes zeros over the
// content of a file, and removes the attributes of files and directories. Small attributes lie in
// the inode, and no later file overwrites that.
func overwriter(ctx context.Context, zeros []byte) func(*os.File, string, string) error {
	return func(dir *os.File, name, path string) error {
		var stat unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil //nolint:nilerr // gone
		}
		var how uint64
		switch stat.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			how = unix.O_WRONLY
		case unix.S_IFDIR:
			how = unix.O_RDONLY | unix.O_DIRECTORY
		default:
			return nil // neither content nor attributes
		}
		var file *os.File
		err := unfix(dir, name, func() (err error) {
			file, err = openBelow(dir, name, how)
			return err
		})
		if err != nil {
			return explain(path, err)
		}
		defer func() { _ = file.Close() }() // synced
		if err := unfix(dir, name, func() error { return stripAttributes(file) }); err != nil || stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			return err
		}
		return overwrite(ctx, file, zeros)
	}
}

// overwrite writes zeros over a file's data on disk, and leaves its holes.
func overwrite(ctx context.Context, file *os.File, zeros []byte) error {
	for at := int64(0); ; {
		begin, err := file.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return file.Sync()
		}
		if err != nil {
			return fmt.Errorf("finding the contents of %s: %w", file.Name(), err)
		}
		if at, err = file.Seek(begin, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("finding the contents of %s: %w", file.Name(), err)
		}
		for begin < at {
			n, err := file.WriteAt(zeros[:min(int64(len(zeros)), at-begin)], begin)
			if err := errors.Join(err, ctx.Err()); err != nil {
				return fmt.Errorf("overwriting %s: %w", file.Name(), err)
			}
			begin += int64(n)
		}
	}
}
