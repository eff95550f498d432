package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// CgroupRoots returns the mount points of the cgroup hierarchies that can hold pods. That is one on
// cgroup v2, and one for each controller on v1. On v1 it includes the unified hierarchy without
// controllers, because runtimes make directories there too.
func CgroupRoots(mounts []*mountinfo.Info) []string {
	var roots []string
	for _, m := range mounts {
		if (m.FSType == "cgroup" || m.FSType == "cgroup2") && m.Root == "/" && !slices.Contains(roots, m.Mountpoint) {
			roots = append(roots, m.Mountpoint)
		}
	}
	return roots
}

// MakeCgroups makes a cluster's own cgroup in every hierarchy. The kubelet requires an existing
// one.
func MakeCgroups(name string) error {
	mounts, err := ReadMounts("self")
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Root != "/" || (m.FSType != "cgroup" && m.FSType != "cgroup2") {
			continue
		}
		if err := makeCgroup(m, name); err != nil {
			return err
		}
	}
	return nil
}

// makeCgroup makes the cluster's cgroup in one hierarchy. On v2 it enables the controllers for the
// cgroup's own children too. Otherwise systemd disables them, for example at `systemctl
// daemon-reload`, because no child uses them, and the kubelet then fails to start.
func makeCgroup(m *mountinfo.Info, name string) error {
	dir := filepath.Join(m.Mountpoint, name)
	if m.FSType == "cgroup2" {
		if err := delegate(m.Mountpoint); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the cgroup %s: %w", dir, err)
	}
	if m.FSType == "cgroup2" {
		return delegate(dir)
	}
	if slices.Contains(strings.Split(m.VFSOptions, ","), "cpuset") {
		return inheritCPUs(m.Mountpoint, dir)
	}
	return nil
}

// delegated are the v2 controllers the kubelet requires. A controller that the kernel lacks is left
// out.
var delegated = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// delegate enables the controllers that pods need for the children of a v2 cgroup. systemd, where
// it runs, has enabled most of them for the root's children.
func delegate(dir string) error {
	available, enabled, err := controllers(dir)
	if err != nil {
		return err
	}
	for _, controller := range available {
		if !slices.Contains(delegated, controller) || slices.Contains(enabled, controller) {
			continue
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("cgroup controller %s cannot be enabled, because %s itself contains processes, as in a container: move them to a group below it", controller, dir)
		}
		if err != nil {
			return fmt.Errorf("enabling the cgroup controller %s in %s: %w", controller, dir, err)
		}
	}
	return nil
}

// controllers returns the controllers a v2 cgroup has, and those enabled for its children.
func controllers(dir string) (available, enabled []string, err error) {
	for file, list := range map[string]*[]string{"cgroup.controllers": &available, "cgroup.subtree_control": &enabled} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, nil, fmt.Errorf("reading the cgroup controllers of %s: %w", dir, err)
		}
		*list = strings.Fields(string(text))
	}
	return available, enabled, nil
}

// inheritCPUs fills a v1 cpuset. A new one is empty and accepts no process.
func inheritCPUs(root, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(root, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return fmt.Errorf("setting %s of %s: %w", file, dir, err)
		}
	}
	return nil
}

// podCgroup is where the kubelet puts the containers of a pod, by the class of the pod's resources.
var podCgroup = regexp.MustCompile(`/kubepods(?:/[a-z]+)?/pod([0-9a-f-]+)(?:/|\n|$)`)

// PodOf gives the uid of the pod to which a process with this cgroup file belongs, or "" for no
// pod. The file has one line on v2 and one for each hierarchy on v1, and not every hierarchy
// contains pods.
func PodOf(cgroup string) string {
	if found := podCgroup.FindStringSubmatch(cgroup); found != nil {
		return found[1]
	}
	return ""
}

// RemoveCgroups removes a cluster's cgroups, deepest first. Its processes have ended by then, but
// the kernel releases a cgroup only when the last of them is reaped. RemoveCgroups therefore
// retries a busy cgroup until the deadline.
func RemoveCgroups(name string, deadline time.Time) error {
	mounts, err := ReadMounts("self")
	if err != nil {
		return err
	}
	for _, root := range CgroupRoots(mounts) {
		if err := removeCgroup(filepath.Join(root, name), deadline); err != nil {
			return err
		}
	}
	return nil
}

func removeCgroup(dir string, deadline time.Time) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("listing the cgroup %s: %w", dir, err)
	}
	slices.Reverse(dirs) // parents come first in a walk
	for _, d := range dirs {
		for {
			err := unix.Rmdir(d)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("removing the cgroup %s: %w", d, err)
			}
			time.Sleep(10 * time.Millisecond) // cgroups have no event for "empty" on v1
		}
	}
	return nil
}
