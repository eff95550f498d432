package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

// attachLoop attaches a free loop device to a file.
func attachLoop(t *testing.T, path string) *os.File {
	t.Helper()
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	for range 20 { // others may take the free one first
		number, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_FD, int(backing.Fd()))
		if err == nil {
			return device
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
	}
	t.Fatal("no loop device stays free")
	return nil
}

func TestALoopDeviceOfAFurtherNodeIsDetachedWithTheCluster(t *testing.T) {
	before, err := Loops()
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(fmt.Sprintf("loops-%d", os.Getpid()), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	disk := l.OfNode(layout.Node{Name: "two", Number: 2}).VarTarn()
	if err := os.MkdirAll(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk, "volume"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	// As a container sees it: the kernel's path of the file is not the host's.
	seen := t.TempDir()
	if err := unix.Mount(disk, seen, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	device := attachLoop(t, filepath.Join(seen, "volume"))
	id := ""
	if info, err := unix.IoctlLoopGetStatus64(int(device.Fd())); err == nil {
		id = loopID(filepath.Base(device.Name()), info)
	}
	device.Close()
	t.Cleanup(func() { detachLoopsBelow(l.Data) }) //nolint:errcheck // detached if all is well
	if err := unix.Unmount(seen, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if attached, err := Loops(); err != nil || id == "" || !slices.Contains(attached, id) {
		t.Fatalf("the device %q is not attached: %v, %v", id, attached, err)
	}
	if err := release(l, before); err != nil {
		t.Fatal(err)
	}
	if left, err := Loops(); err != nil || slices.Contains(left, id) {
		t.Errorf("the device %s is still attached: %v", id, err)
	}
}
