package scrub

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"time"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// File scrubs the file system mounted at path, by method Files, Zero or Discard. It verifies the
// result and returns a certificate of it. After an interruption or a failure it may be called
// again.
func File(ctx context.Context, method tarnv1.RecycleMethod, path string) (tarnv1.RecycleCertificate, error) {
	began := time.Now()
	cert := tarnv1.RecycleCertificate{Method: method}
	top, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return cert, fmt.Errorf("opening the volume: %w", err)
	}
	defer top.Close()
	switch method {
	case tarnv1.RecycleFiles:
		err = emptied(ctx, top, &cert, nil)
	case tarnv1.RecycleZero:
		err = zeroed(ctx, top, &cert)
	case tarnv1.RecycleDiscard:
		err = trimmed(ctx, top, &cert)
	default:
		err = fmt.Errorf("method %q does not work on a file system: use %s, %s or %s", method, tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard)
	}
	cert.Seconds = time.Since(began).Seconds()
	return cert, err
}

// Device scrubs the block device at path, by method Zero or Discard.
func Device(ctx context.Context, method tarnv1.RecycleMethod, path string) (tarnv1.RecycleCertificate, error) {
	began := time.Now()
	cert := tarnv1.RecycleCertificate{Method: method}
	if method != tarnv1.RecycleZero && method != tarnv1.RecycleDiscard {
		return cert, fmt.Errorf("method %q does not work on a block device: use %s or %s", method, tarnv1.RecycleZero, tarnv1.RecycleDiscard)
	}
	// O_EXCL fails on a device that is mounted anywhere on this machine.
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_EXCL|unix.O_NOFOLLOW, 0)
	if err != nil {
		return cert, fmt.Errorf("opening the device: %w", err)
	}
	defer device.Close()
	if err := wipe(ctx, device, method, &cert); err != nil {
		return cert, err
	}
	cert.Seconds = time.Since(began).Seconds()
	return cert, nil
}

// sample is a growing hash of the data read back and its position.
type sample struct{ hash hash.Hash }

func newSample() sample { return sample{sha256.New()} }

func (s sample) add(offset int64, data []byte) {
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(offset))
	s.hash.Write(at[:])
	s.hash.Write(data)
}

func (s sample) String() string { return hex.EncodeToString(s.hash.Sum(nil)) }

// aligned gives zeroed memory that may be read and written past the page cache.
func aligned(size int) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes: %w", size, err)
	}
	return memory, nil
}
