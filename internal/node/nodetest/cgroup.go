package nodetest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Cgroup creates a cgroup (v2) of that path below one of the test's own. When the test ends, its
// processes are killed and the cgroups are removed.
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
	err := errors.Join(emptied(top), filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	}))
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(dir))
	}
	if err != nil {
		t.Errorf("remove the cgroups: %v", err)
	}
}

// emptied waits until no process is in the cgroup or below.
func emptied(cgroup string) error {
	events, err := os.Open(filepath.Join(cgroup, "cgroup.events"))
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	for {
		text := make([]byte, 256)
		n, err := events.ReadAt(text, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.Contains(string(text[:n]), "populated 0\n") {
			return nil
		}
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}, 10_000)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case err == nil && n == 0:
			return fmt.Errorf("%s is not empty 10 s after its processes were killed", cgroup)
		}
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
