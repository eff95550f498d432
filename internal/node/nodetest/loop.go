package nodetest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Loop creates a block device of that many bytes and returns its number. The device is removed when
// the test ends.
func Loop(t testing.TB, size int64) (device uint64) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	backing, err := os.Create(filepath.Join(Tmpfs(t), "image"))
	must(err)
	t.Cleanup(func() { _ = backing.Close() })
	must(backing.Truncate(size))
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	must(err)
	defer func() { _ = control.Close() }()
	var dev *os.File
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		must(err)
		dev, err = os.OpenFile("/dev/loop"+strconv.Itoa(number), os.O_RDWR, 0)
		must(err)
		err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(backing.Fd()))
		if err == nil {
			break
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) { // another process was quicker
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		must(unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0))
		_ = dev.Close()
	})
	var stat unix.Stat_t
	must(unix.Fstat(int(dev.Fd()), &stat))
	return stat.Rdev
}
