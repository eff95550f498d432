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

// lostAndFound is the directory that fsck of ext2, ext3 and ext4 needs at the top.
const lostAndFound = "lost+found"

// emptied removes everything from a volume and verifies that nothing is left. It calls first for
// each entry before removing it.
func emptied(ctx context.Context, top *os.File, cert *tarnv1.RecycleCertificate, first func(*os.File, string, string) error) error {
	kept, err := keptFolder(top)
	if err != nil {
		return err
	}
	r := &removal{ctx: ctx, top: top, first: first, keeps: func(name string) bool { return kept && name == lostAndFound }}
	if kept {
		lost, err := OpenBelow(top, lostAndFound)
		if err != nil {
			return explain(lostAndFound, err)
		}
		err = errors.Join(r.empty(lost, lostAndFound, 1), stripAttributes(lost), lost.Close())
		if err != nil {
			return err
		}
	}
	if err := r.empty(top, "", 0); err != nil {
		return err
	}
	cert.Files += r.files
	if err := errors.Join(stripAttributes(top), syncFS(top)); err != nil {
		return err
	}
	return verifyEmpty(top, kept, cert)
}

// keptFolder says whether lost+found belongs to the file system. On ext2, ext3 and ext4 it then is
// the first inode that is not reserved.
func keptFolder(top *os.File) (bool, error) {
	const extMagic, firstInode = 0xef53, 11
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(top.Fd()), &fs); err != nil {
		return false, fmt.Errorf("asking what file system the volume has: %w", err)
	}
	var stat unix.Stat_t
	err := unix.Fstatat(int(top.Fd()), lostAndFound, &stat, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && fs.Type == extMagic && stat.Ino == firstInode && stat.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// stripAttributes removes the attributes that a user may have written on a file or directory,
// access control lists included. A file system without attributes is no error.
func stripAttributes(file *os.File) error {
	names, err := attributes(file)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := unix.Fremovexattr(int(file.Fd()), name); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("removing attribute %s of %s: %w", name, file.Name(), err)
		}
	}
	return nil
}

// attributes gives the names of those attributes of a file or directory that users may write.
func attributes(file *os.File) ([]string, error) {
	fd := int(file.Fd())
	size, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	list := make([]byte, size)
	if err == nil && size > 0 {
		size, err = unix.Flistxattr(fd, list)
	}
	if err != nil {
		return nil, fmt.Errorf("listing the attributes of %s: %w", file.Name(), err)
	}
	names := strings.Split(strings.TrimRight(string(list[:size]), "\x00"), "\x00")
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_")
	}), nil
}

func syncFS(dir *os.File) error {
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("flushing the volume: %w", err)
	}
	return nil
}

// verifyEmpty reads the volume's directory and lost+found again.
func verifyEmpty(top *os.File, kept bool, cert *tarnv1.RecycleCertificate) error {
	found, read, err := entries(top, kept)
	if err != nil {
		return err
	}
	if found.count > 0 {
		return fmt.Errorf("%s is there after everything was removed: something still writes to the volume; stop it", found)
	}
	cert.SampleSHA256 = read.String()
	return nil
}
