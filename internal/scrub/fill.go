package scrub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const (
	// fillFiles is about how many files take the free space, so that a part of it can be freed
	// again.
	fillFiles = 64
	// rounds is how often a part is freed to reach reserved space.
	rounds = 64
)

// filler takes all free space of a file system with files of zeros. A file system reserves some of
// its free space, and gives out another part when files are removed. So the filler records which
// blocks its files have had, and continues until these are all blocks that were free.
type filler struct {
	ctx   context.Context
	dir   *os.File
	zeros []byte
	// free is the free space at the start, each the limit of a file, both in bytes.
	free, each int64
	files      []*os.File
	// made counts all files, fresh those of this round.
	made, fresh int
	covered     extents
	unreached   int64
	read        sample
}

func newFiller(ctx context.Context, top *os.File, zeros []byte) (*filler, error) {
	free, err := freeOf(top)
	if err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(int(top.Fd()), filling, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory %s: %w", filling, err)
	}
	dir, err := OpenBelow(top, filling)
	if err != nil {
		return nil, explain(filling, err)
	}
	each := max(free/fillFiles/chunk, 1) * chunk
	return &filler{ctx: ctx, dir: dir, zeros: zeros, free: free, each: each, read: newSample()}, nil
}

func freeOf(dir *os.File) (int64, error) {
	var fs unix.Statfs_t
	if err := errors.Join(syncFS(dir), unix.Fstatfs(int(dir.Fd()), &fs)); err != nil {
		return 0, fmt.Errorf("asking how much of the volume is free: %w", err)
	}
	return int64(fs.Bfree) * fs.Bsize, nil
}

// fill writes until it has written every block that was free, if the file system gives them all
// out.
func (f *filler) fill() error {
	for range rounds {
		// Smaller pieces fill what the larger ones leave. The smallest is no larger than any block,
		// and takes a whole one.
		for _, size := range []int{len(f.zeros), 64 << 10, 4 << 10, 512} {
			if err := f.fillBy(size); err != nil {
				return err
			}
		}
		left, err := f.account()
		if err != nil || f.unreached == 0 {
			return err
		}
		if err := f.giveBack(2*left + f.each); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d bytes of free space could not be overwritten, because the file system reserves them: use %s, or a block volume", f.unreached, tarnv1.RecycleDiscard)
}

// account reads back a sample of all files, records where they lie, and gives how many bytes the
// file system reports as free.
func (f *filler) account() (left int64, err error) {
	if left, err = freeOf(f.dir); err != nil {
		return 0, err
	}
	var now extents
	for _, file := range f.files {
		mapped, err := extentsOf(file)
		if err != nil {
			return 0, err
		}
		now = append(now, mapped...)
	}
	f.covered = append(f.covered, now...).merged()
	// Space that is neither free nor in a file holds the block lists of the files.
	lists := f.free - left - now.merged().total()
	f.unreached = max(0, f.free-f.covered.total()-lists)
	return left, f.verify()
}

// giveBack removes the oldest files, size bytes together. It does not wait until the removal is
// written out. Until then ext4 and xfs count the space as free but cannot use it, so they give out
// what they had reserved.
func (f *filler) giveBack(size int64) error {
	for size > 0 && len(f.files) > 0 {
		oldest := f.files[0]
		info, err := oldest.Stat()
		if err != nil {
			return fmt.Errorf("removing zeros again: %w", err)
		}
		if err := errors.Join(unix.Unlinkat(int(f.dir.Fd()), oldest.Name(), 0), oldest.Close()); err != nil {
			return fmt.Errorf("removing zeros again: %w", err)
		}
		size -= info.Size()
		f.files = f.files[1:]
	}
	return nil
}

// fillBy writes pieces of a size until none fits.
func (f *filler) fillBy(piece int) error {
	for {
		file, err := f.next()
		if errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
		for size := int64(0); err == nil && size < f.each; {
			var n int
			n, err = file.Write(f.zeros[:piece])
			err, size = errors.Join(err, f.ctx.Err()), size+int64(n)
		}
		switch {
		case err == nil, errors.Is(err, unix.EFBIG): // the next file continues
		case errors.Is(err, unix.ENOSPC):
			return nil
		case errors.Is(err, unix.EDQUOT):
			return fmt.Errorf("a quota keeps the free space from being overwritten: lift it, or use another method: %w", err)
		default:
			return fmt.Errorf("overwriting free space: %w", err)
		}
	}
}

func (f *filler) next() (*os.File, error) {
	name := strconv.Itoa(f.made)
	fd, err := unix.Openat(int(f.dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating file %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	f.files, f.made, f.fresh = append(f.files, file), f.made+1, f.fresh+1
	return file, nil
}

// verify reads pieces of this round's files back from the disk.
func (f *filler) verify() error {
	buffer := make([]byte, sampleSize)
	for _, file := range f.files[len(f.files)-f.fresh:] {
		info, err := file.Stat()
		if err != nil {
			return fmt.Errorf("reading back %s: %w", file.Name(), err)
		}
		if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("dropping %s from memory: %w", file.Name(), err)
		}
		if err := verifyZero(file, info.Size(), samplesOfFile, buffer, f.read); err != nil {
			return err
		}
	}
	f.fresh = 0
	return nil
}

// verifyZero reads count pieces of a file or device to which zeros were written.
func verifyZero(file *os.File, size int64, count int, buffer []byte, read sample) error {
	return readPieces(file, size, count, buffer, func(at int64, data []byte) error {
		read.add(at, data)
		if err := mustBeZero(at, data); err != nil {
			return fmt.Errorf("%w after zeros were written: the storage loses writes", err)
		}
		return nil
	})
}

func mustBeZero(at int64, data []byte) error {
	for n, b := range data {
		if b != 0 {
			return fmt.Errorf("byte %d reads %#x", at+int64(n), b)
		}
	}
	return nil
}

// readPieces reads count pieces of the buffer's size: the beginning, the end and random ones.
func readPieces(file *os.File, size int64, count int, buffer []byte, each func(at int64, data []byte) error) error {
	piece := int64(len(buffer))
	for i := range count {
		var at int64
		switch last := (size - 1) / piece; {
		case size == 0:
			return nil
		case i == 1:
			at = last * piece
		case i > 1:
			at = rand.Int64N(last+1) * piece
		}
		data := buffer[:min(piece, size-at)]
		_, err := file.ReadAt(data, at)
		if err == nil {
			err = each(at, data)
		}
		if err != nil {
			return fmt.Errorf("reading back %s: %w", file.Name(), err)
		}
		if size <= piece {
			return nil
		}
	}
	return nil
}

func (f *filler) close() error {
	errs := []error{f.dir.Close()}
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}
