package scrub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// fitrim is the ioctl that discards the free space of a file system, FITRIM of linux/fs.h.
const fitrim = 0xc0185879

// wipe overwrites or discards all of a block device and reads a sample back.
func wipe(ctx context.Context, device *os.File, method tarnv1.RecycleMethod, cert *tarnv1.RecycleCertificate) error {
	size, err := sizeOf(device)
	if err != nil {
		return err
	}
	memory, err := aligned(chunk)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	if method == tarnv1.RecycleDiscard {
		err = discard(device, size)
	} else {
		err = zeroDevice(ctx, device, size, memory)
	}
	if err != nil {
		return err
	}
	cert.Bytes = size
	read := newSample()
	if err := verifyZero(device, size, samplesOfDevice, memory[:sampleSize], read); err != nil {
		return err
	}
	cert.SampleSHA256 = read.String()
	return nil
}

// sizeOf gives the bytes of a block device. Any other file is an error.
func sizeOf(device *os.File) (int64, error) {
	info, err := device.Stat()
	if err != nil {
		return 0, fmt.Errorf("reading the device: %w", err)
	}
	if info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return 0, fmt.Errorf("%s is not a block device", device.Name())
	}
	size, err := device.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return 0, errors.Join(fmt.Errorf("%s has a size of %d", device.Name(), size), err)
	}
	return size, nil
}

func zeroDevice(ctx context.Context, device *os.File, size int64, zeros []byte) error {
	for at := int64(0); at < size; {
		n, err := device.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at)
		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("overwriting the device at byte %d of %d: %w", at, size, err)
		}
		at += int64(n)
	}
	if err := device.Sync(); err != nil {
		return fmt.Errorf("flushing the device: %w", err)
	}
	return nil
}

// discard discards all content of a device. A discarded device need not read as zeros, so the
// caller verifies it like an overwritten one.
func discard(device *os.File, size int64) error {
	all := [2]uint64{0, uint64(size)}
	err := ioctl(device, unix.BLKDISCARD, unsafe.Pointer(&all))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the device cannot discard: use %s: %w", tarnv1.RecycleZero, err)
	}
	if err != nil {
		return fmt.Errorf("discarding the device: %w", err)
	}
	return nil
}

// trimmed empties a file system and discards its free space. Discarded blocks cannot be read
// through the file system, so trimmed verifies that the file system reports a discard.
func trimmed(ctx context.Context, top *os.File, cert *tarnv1.RecycleCertificate) error {
	if err := emptied(ctx, top, cert, nil); err != nil {
		return err
	}
	m, err := mountOf(top)
	if err != nil {
		return err
	}
	// Freed blocks may count as free only after another commit of the journal.
	for range trimsAtMost {
		if err := freeAnew(top); err != nil {
			return err
		}
		discarded, err := trim(top)
		if err != nil {
			return err
		}
		if cert.Bytes = discarded; discarded > 0 || m.discards() {
			return nil
		}
	}
	return fmt.Errorf("the file system reports that it discarded nothing: use %s", tarnv1.RecycleZero)
}

const (
	// trimsAtMost is how often a file system is asked to discard before it counts as unable.
	trimsAtMost = 3
	// freedAnew is the size of a file that no file system stores in its inode.
	freedAnew = 64 << 10
)

// freeAnew writes a file and removes it again. ext4 skips what it has discarded since it was
// mounted, unless something was freed there since. Without this, an empty volume that stays mounted
// would report 0 the second time, like a device that cannot discard.
func freeAnew(top *os.File) error {
	fd, err := unix.Openat(int(top.Fd()), filling, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("writing a file to discard: %w", err)
	}
	file := os.NewFile(uintptr(fd), filling)
	_, err = file.Write(make([]byte, freedAnew))
	err = errors.Join(err, file.Sync(), file.Close(), unix.Unlinkat(int(top.Fd()), filling, 0))
	if err != nil {
		return fmt.Errorf("writing a file to discard: %w", err)
	}
	return syncFS(top)
}

// trim discards the free space of a file system and gives the number of bytes discarded.
func trim(top *os.File) (int64, error) {
	request := struct{ start, length, least uint64 }{length: math.MaxUint64}
	err := ioctl(top, fitrim, unsafe.Pointer(&request))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		return 0, fmt.Errorf("file system or device cannot discard: use %s: %w", tarnv1.RecycleZero, err)
	}
	if err != nil {
		return 0, fmt.Errorf("discarding free space: %w", err)
	}
	return int64(request.length), nil
}

func ioctl(file *os.File, request uint, argument unsafe.Pointer) error {
	for {
		_, _, code := unix.Syscall(unix.SYS_IOCTL, file.Fd(), uintptr(request), uintptr(argument))
		if code == 0 {
			return nil
		}
		if !errors.Is(code, unix.EINTR) {
			return code
		}
	}
}
