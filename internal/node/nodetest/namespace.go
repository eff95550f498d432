// Package nodetest runs the tests of the node agent in their own mount namespace. They can mount
// for real, and no mount is seen outside or outlives them. It is only for tests, and knows nothing
// of what they test.
package nodetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const insideVariable = "TARN_TEST_MOUNT_NAMESPACE"

// Main is for TestMain, with m.Run. It starts the test binary again in a new mount namespace and
// runs the tests there. Without the right to do so it runs no test and says why.
func Main(run func() int) {
	if os.Getenv(insideVariable) == "" {
		os.Exit(again())
	}
	// Mounts of the tests must not propagate to the original namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "make the mounts private:", err)
		os.Exit(1)
	}
	os.Exit(run())
}

func again() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "SKIP: these tests mount and make device nodes; run them as root")
		return 0
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the tests in a mount namespace:", err)
		return 1
	}
	return 0
}

// Tmpfs mounts an empty file system, shared like a kubelet's directory, and returns its path.
// Everything mounted below it is unmounted when the test ends.
func Tmpfs(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tarn-") // short: sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tarn-test", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatalf("make the tmpfs shared: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount the tmpfs: %v", err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// MountTmpfs mounts another tmpfs at dir. A missing dir is created.
func MountTmpfs(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tarn-test", dir, "tmpfs", 0, ""); err != nil {
		t.Fatalf("mount a tmpfs at %s: %v", dir, err)
	}
}

// Must ends the test if a step of it fails.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
