// Package host checks and changes the machine for the embedded cluster: checks before the start,
// namespaces, mounts, the cable to the node, cgroups, loop devices, and their removal. All mounting
// happens in the cluster's own mount namespace. The functions that run outside of it only read, and
// remove what a cluster left.
//
// It must not know which components a cluster has.
package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

// ReadMounts reads the mounts a process sees; "self" is the caller.
func ReadMounts(pid string) ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts of process %s: %w", pid, err)
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the mounts of process %s: %w", pid, err)
	}
	return mounts, nil
}

// Below returns the mount points at or below a path, deepest first.
func Below(mounts []*mountinfo.Info, path string) []string {
	var points []string
	for i := len(mounts) - 1; i >= 0; i-- {
		point := mounts[i].Mountpoint
		if point == path || strings.HasPrefix(point, strings.TrimSuffix(path, "/")+"/") {
			points = append(points, point)
		}
	}
	return points
}

// RemoveTree deletes a directory of a cluster. It first unmounts everything at or below the
// directory. If a mount is left it deletes nothing, because a recursive deletion must never reach
// through a mount.
func RemoveTree(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // mountinfo names real paths
	}
	mounts, err := ReadMounts("self")
	if err != nil {
		return err
	}
	for _, point := range Below(mounts, path) {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("%s is still mounted and in use (%w): unmount it, then run the command again", point, err)
		}
	}
	if mounts, err = ReadMounts("self"); err != nil {
		return err
	}
	if left := Below(mounts, path); len(left) > 0 {
		return fmt.Errorf("%s is still mounted: unmount it, then run the command again", left[0])
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}

// Isolate gives the calling process the view a cluster has. The caller must be the first process of
// new process and mount namespaces. It gets its own /proc and /run, and its own directories for the
// kubelet, the network library and the container logs.
//
// All mounts in it are shared, so that other processes see what a privileged pod mounts. Mounts of
// the host still come in; none go out.
func Isolate(l layout.Layout) error {
	// Make our mounts slaves of the host's. What the host unmounts is unmounted here too, so we do
	// not keep it busy.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc of the cluster: %w", err)
	}
	if err := privateRun(l); err != nil {
		return err
	}
	own := map[string]string{layout.KubeletDir: l.Kubelet(), layout.CNIStateDir: l.CNIState(), layout.LogDir: l.VarLog()}
	if l.Node.Name != "" {
		own[layout.TarnDir] = l.VarTarn()
	}
	for target, source := range own {
		if err := os.MkdirAll(source, 0o755); err != nil {
			return fmt.Errorf("creating %s: %w", source, err)
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding %s to %s: %w", source, target, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("sharing the cluster's mounts with its pods: %w", err)
	}
	return nil
}

// HostMounts makes a mount namespace with the mounts of the host, from which further nodes start.
// Mounts of the host still come in; none go out. Call it before Isolate.
func HostMounts() (*os.File, error) {
	ns, err := newNamespace(unix.CLONE_NEWNS, "mnt", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") })
	if err != nil {
		return nil, fmt.Errorf("copying the host's mounts for further nodes: %w", err)
	}
	return ns, nil
}

// newNamespace makes a namespace on a thread that ends right after, and sets it up on that thread.
// file is the namespace's name in /proc/thread-self/ns.
func newNamespace(flag int, file string, setUp func() error) (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not be used again
		err := unix.Unshare(flag)
		if err == nil {
			err = setUp()
		}
		if err != nil {
			made <- result{err: err}
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/" + file)
		made <- result{ns, err}
	}()
	r := <-made
	return r.ns, r.err
}

// privateRun replaces /run by an empty one that shares only the cluster's own run directory with
// the host. containerd's shims and the network plugins' locks have paths in /run compiled in, and
// would clash with those of other clusters. This also hides systemd, through which the kubelet
// would otherwise mount.
func privateRun(l layout.Layout) error {
	stage := filepath.Join(l.Run, "run")
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", stage, err)
	}
	if err := unix.Mount("tmpfs", stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mounting a /run for the cluster: %w", err)
	}
	inside := filepath.Join(stage, strings.TrimPrefix(l.Run, "/run/"))
	if err := os.MkdirAll(inside, 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", inside, err)
	}
	if err := unix.Mount(l.Run, inside, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %s: %w", l.Run, err)
	}
	if err := unix.Mount(stage, "/run", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("replacing /run for the cluster: %w", err)
	}
	return nil
}

// mountPointsFile records which of the directories that clusters bind over did not exist before.
func mountPointsFile() string { return filepath.Join(layout.RunRoot(), "made-folders") }

// MakeMountPoints makes, on the host, the directories that Isolate binds over, and records those
// that were missing.
func MakeMountPoints(further bool) error {
	dirs := []string{layout.KubeletDir, layout.CNIStateDir, layout.LogDir}
	if further {
		dirs = append(dirs, layout.TarnDir)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("creating %s: %w", dir, err)
		}
		f, err := os.OpenFile(mountPointsFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("recording that %s is ours: %w", dir, err)
		}
		_, err = fmt.Fprintln(f, dir)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("recording that %s is ours: %w", dir, err)
		}
	}
	return nil
}

// RemoveMountPoints removes the directories MakeMountPoints made, if they are empty. Call it only
// when no cluster runs: removing a directory unmounts what another namespace has mounted on it.
func RemoveMountPoints() error {
	made, err := os.ReadFile(mountPointsFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding the directories to remove: %w", err)
	}
	for _, dir := range strings.Fields(string(made)) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("removing %s: %w", dir, err)
		}
	}
	return os.Remove(mountPointsFile())
}
