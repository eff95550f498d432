package procns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/node/mounts"
)

// Container is a mount namespace with processes of a pod.
type Container struct {
	// Pod is the UID of its pod.
	Pod types.UID
	// Process is the directory in /proc of one of its processes.
	Process string
	// Namespace is the number of the mount namespace.
	Namespace uint64
	// Table is its mount table, with points as the process sees them.
	Table []mounts.Mount
}

// Find returns the containers of the pods. It checks every process of the machine that /proc shows.
// A process that ends meanwhile is skipped.
func Find(pods []types.UID) ([]Container, error) {
	own, err := namespaceOf("/proc/self")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	names, seen := cgroupsOf(pods), map[uint64]bool{own: true}
	var found []Container
	for _, process := range processes(entries) {
		space, err := namespaceOf(process)
		if err != nil || seen[space] {
			continue
		}
		pod, _, err := names.containerOf(process)
		if err != nil {
			continue
		}
		seen[space] = true
		if pod == "" {
			continue
		}
		table, err := mounts.ListOf(process)
		if err != nil {
			if vanished(err) {
				continue
			}
			return nil, fmt.Errorf("inspect a container of pod %s: %w", pod, err)
		}
		found = append(found, Container{Pod: pod, Process: process, Namespace: space, Table: table})
	}
	return found, nil
}

// processes gives the directories of all processes, the lowest number first. A container's initial
// process so comes before those that have changed their root since.
func processes(entries []os.DirEntry) []string {
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	list := make([]string, len(numbers))
	for i, n := range numbers {
		list[i] = filepath.Join("/proc", strconv.Itoa(n))
	}
	return list
}

// namespaceOf is the number of a process's mount namespace.
func namespaceOf(process string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(process+"/ns/mnt", &stat); err != nil {
		return 0, &os.PathError{Op: "stat", Path: process + "/ns/mnt", Err: err}
	}
	return stat.Ino, nil
}

// cgroups are, by pod, the names that the pods' cgroups contain, with "-" for each "_".
type cgroups map[types.UID]string

// cgroupsOf gives the names for these pods. The kubelet names cgroups after the pod's UID, with "_"
// for "-" if systemd manages them.
func cgroupsOf(pods []types.UID) cgroups {
	names := cgroups{}
	for _, pod := range pods {
		names[pod] = "pod" + strings.ReplaceAll(string(pod), "_", "-")
	}
	return names
}

// containerOf gives the pod of a process, empty if it is none of them, and the ID of its container.
func (c cgroups) containerOf(process string) (pod types.UID, container string, err error) {
	data, err := os.ReadFile(process + "/cgroup")
	if err != nil {
		return "", "", err
	}
	text := strings.ReplaceAll(string(data), "_", "-")
	for pod, name := range c {
		if _, rest, ok := strings.Cut(text, name); ok {
			return pod, containerIn(rest), nil
		}
	}
	return "", "", nil
}

// containerIn gets the container ID from the part of a cgroup path after the pod's name. It is
// empty for the pod's own cgroup. Runtimes name a container's cgroup after its ID: pod.../ID,
// pod.../crio-ID, pod....slice/cri-containerd-ID.scope, pod....slice:cri-containerd:ID.
func containerIn(path string) string {
	path, _, _ = strings.Cut(path, "\n")
	path = strings.TrimPrefix(path, ".slice")
	if path == "" {
		return ""
	}
	name, _, _ := strings.Cut(path[1:], "/")
	name = strings.TrimSuffix(name, ".scope")
	return name[strings.LastIndexAny(name, "-:")+1:]
}

func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
