package nodetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup makes a cgroup (v2) of that path below one of the test's own. When the test ends, what
// runs in it is killed, and all of it removed.
func Cgroup(t testing.TB, path string) (dir string) {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("tarn-test", root, "cgroup2", 0, ""); err != nil {
		t.Fatalf("mount the cgroups: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount the cgroups: %v", err)
		}
	})
	own, err := os.MkdirTemp(root, "tarn-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, own) })
	dir = filepath.Join(own, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func removeCgroup(t testing.TB, top string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(top, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Error(err)
	}
	var dirs []string
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		removed := os.Remove(dir)
		for over := time.Now().Add(10 * time.Second); errors.Is(removed, unix.EBUSY) && time.Now().Before(over); removed = os.Remove(dir) {
			time.Sleep(time.Millisecond) // what was killed is not gone yet, of which nothing tells
		}
		err = errors.Join(err, removed)
	}
	if err != nil {
		t.Errorf("remove the cgroups: %v", err)
	}
}

// LinuxSince says whether the kernel is of that version or a later one.
func LinuxSince(t testing.TB, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var is, and int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &is, &and); err != nil {
		t.Fatalf("version of the kernel: %v", err)
	}
	return is > major || is == major && and >= minor
}

// StartIn starts a shell in the cgroup, with these flags of clone.
func StartIn(t testing.TB, cgroup string, flags uintptr, script string) *exec.Cmd {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // fails where the test has waited
	})
	return cmd
}
