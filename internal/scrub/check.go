package scrub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// namesTold is how many unexpected names an error lists.
const namesTold = 5

// CheckFile reads the file system mounted at path after an external tool has recycled it, and
// changes nothing. It fails if it finds any file. Method Recreate is the exception: a new volume
// contains what its provisioner puts there, so its entries are only counted.
func CheckFile(_ context.Context, method tarnv1.RecycleMethod, path string) (tarnv1.RecycleCertificate, error) {
	began := time.Now()
	cert := tarnv1.RecycleCertificate{Method: method}
	if err := checkable(method); err != nil {
		return cert, err
	}
	top, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return cert, fmt.Errorf("opening the volume: %w", err)
	}
	defer top.Close()
	kept, err := keptFolder(top)
	if err != nil {
		return cert, err
	}
	found, read, err := entries(top, kept)
	if err != nil {
		return cert, err
	}
	if method != tarnv1.RecycleRecreate {
		if err := found.none(); err != nil {
			return cert, err
		}
	}
	cert.Found, cert.SampleSHA256, cert.Seconds = found.count, read.String(), time.Since(began).Seconds()
	return cert, nil
}

// CheckDevice reads a sample of the block device at path after an external tool has recycled it,
// and changes nothing. The sample must be zeros, except for method Recreate.
func CheckDevice(ctx context.Context, method tarnv1.RecycleMethod, path string) (tarnv1.RecycleCertificate, error) {
	began := time.Now()
	cert := tarnv1.RecycleCertificate{Method: method}
	if err := checkable(method); err != nil {
		return cert, err
	}
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT|unix.O_EXCL|unix.O_NOFOLLOW, 0)
	if err != nil {
		return cert, fmt.Errorf("opening the device: %w", err)
	}
	defer device.Close()
	size, err := sizeOf(device)
	if err != nil {
		return cert, err
	}
	memory, err := aligned(sampleSize)
	if err != nil {
		return cert, err
	}
	defer func() { _ = unix.Munmap(memory) }()
	judge := mustBeZero
	if method == tarnv1.RecycleRecreate {
		judge = func(int64, []byte) error { return nil }
	}
	read := newSample()
	err = readPieces(device, size, samplesOfDevice, memory, func(at int64, data []byte) error {
		read.add(at, data)
		return errors.Join(ctx.Err(), judge(at, data))
	})
	if err != nil {
		return cert, fmt.Errorf("the device is not empty: %w", err)
	}
	cert.Bytes, cert.SampleSHA256, cert.Seconds = size, read.String(), time.Since(began).Seconds()
	return cert, nil
}

func checkable(method tarnv1.RecycleMethod) error {
	methods := []tarnv1.RecycleMethod{tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard, tarnv1.RecycleRecreate}
	if slices.Contains(methods, method) {
		return nil
	}
	return fmt.Errorf("method %q cannot be checked: use %s, %s, %s or %s", method, methods[0], methods[1], methods[2], methods[3])
}

// findings are what the volume's directories contain: the number of names, the first few, and the
// attributes that a user has left on the directories themselves.
type findings struct {
	count      int64
	names      []string
	attributes []string
}

// none is an error that lists the findings, if there are any.
func (f *findings) none() error {
	switch {
	case f.count > 0:
		return fmt.Errorf("the volume is not empty, it has %s", f)
	case len(f.attributes) > 0:
		return fmt.Errorf("the volume's root directory still has attributes that a user may have written: %q", f.attributes)
	}
	return nil
}

// String quotes a few names, and says how many more there are.
func (f *findings) String() string {
	var quoted []string
	for _, name := range f.names {
		quoted = append(quoted, strconv.Quote(name))
	}
	text := strings.Join(quoted, ", ")
	if more := f.count - int64(len(f.names)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// entries lists the volume's directory, and lost+found if that belongs to the file system. It also
// gives the sample: the directories read and the names in them. lost+found itself counts only in
// the sample. The names are read in batches, as memory may not hold them all.
func entries(top *os.File, kept bool) (*findings, sample, error) {
	found, read := &findings{}, newSample()
	folders := []string{"."}
	if kept {
		folders = append(folders, lostAndFound)
	}
	for _, folder := range folders {
		dir, err := OpenBelow(top, folder)
		if err != nil {
			return nil, read, explain(folder, err)
		}
		read.add(0, []byte(folder))
		err = found.look(dir, read, func(name string) bool { return kept && folder == "." && name == lostAndFound })
		if err := errors.Join(err, dir.Close()); err != nil {
			return nil, read, fmt.Errorf("reading the volume: %w", err)
		}
	}
	return found, read, nil
}

// look adds a directory to the findings.
func (f *findings) look(dir *os.File, read sample, stays func(name string) bool) error {
	left, err := attributes(dir)
	if err != nil {
		return err
	}
	f.attributes = append(f.attributes, left...)
	for {
		names, err := dir.Readdirnames(batch)
		slices.Sort(names)
		for _, name := range names {
			read.add(0, []byte(name))
			if stays(name) {
				continue
			}
			if f.count++; len(f.names) < namesTold {
				f.names = append(f.names, name)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
