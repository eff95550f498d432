package scrub

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fiemap is the ioctl for where a file's content lies, FS_IOC_FIEMAP of linux/fs.h.
const fiemap = 0xc020660b

// Flags of linux/fiemap.h: write the file out first; the last extent; an extent without a place of
// its own, or without written data.
const (
	fiemapSync   = 0x1
	extentLast   = 0x1
	extentUnsure = 0x2 | 0x4 | 0x8 | 0x80 | 0x200 | 0x400 | 0x800
)

// extent is a part of a disk, from and to in bytes.
type extent struct{ from, to int64 }

type extents []extent

// merged gives the same parts in order, each once.
func (e extents) merged() extents {
	slices.SortFunc(e, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	var out extents
	for _, x := range e {
		if n := len(out); n > 0 && x.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, x.to)
			continue
		}
		out = append(out, x)
	}
	return out
}

// total is the total size of parts that do not overlap.
func (e extents) total() (size int64) {
	for _, x := range e {
		size += x.to - x.from
	}
	return size
}

// extentsOf gives where a file's content lies on its disk. It leaves out extents whose data is not
// on the disk as written.
func extentsOf(file *os.File) (extents, error) {
	type entry struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
	var request struct {
		start, length                  uint64
		flags, mapped, count, reserved uint32
		entries                        [256]entry
	}
	var found extents
	for {
		request.length, request.flags, request.count = math.MaxUint64-request.start, fiemapSync, uint32(len(request.entries))
		if err := ioctl(file, fiemap, unsafe.Pointer(&request)); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				return nil, fmt.Errorf("the file system does not report where its files are stored, so Tarn cannot check what was overwritten: %w", err)
			}
			return nil, fmt.Errorf("asking where file %s is stored: %w", file.Name(), err)
		}
		if request.mapped == 0 {
			return found, nil
		}
		for _, x := range request.entries[:request.mapped] {
			if x.flags&extentUnsure == 0 {
				found = append(found, extent{int64(x.physical), int64(x.physical + x.length)})
			}
			if request.start = x.logical + x.length; x.flags&extentLast != 0 {
				return found, nil
			}
		}
	}
}
