package inside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/node/mounts"
)

// Container is a mount namespace that processes of a pod live in.
type Container struct {
	// Pod is whose it is.
	Pod types.UID
	// Process is the folder in /proc of one of its processes.
	Process string
	// Namespace is the number of the mount namespace.
	Namespace uint64
	// Table is its mount table, with points as the process sees them.
	Table []mounts.Mount
}

// Find returns the containers of the pods, by looking at every process of the
// machine that /proc shows. A process that ends meanwhile is passed over.
func Find(pods []types.UID) ([]Container, error) {
	own, err := namespaceOf("/proc/self")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	seen := map[uint64]bool{own: true}
	var found []Container
	for _, process := range processes(entries) {
		space, err := namespaceOf(process)
		if err != nil || seen[space] {
			continue
		}
		pod, err := podOf(process, pods)
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
			return nil, fmt.Errorf("look into a container of pod %s: %w", pod, err)
		}
		found = append(found, Container{Pod: pod, Process: process, Namespace: space, Table: table})
	}
	return found, nil
}

// processes gives the folders of all processes, the oldest number first: what a
// container was started with comes before what has changed its root since.
func processes(entries []os.DirEntry) []string {
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	sort.Ints(numbers)
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

// podOf is which of the pods a process belongs to, empty if to none. The kubelet
// names a pod's cgroup after its uid, with "_" for "-" where systemd manages it.
func podOf(process string, pods []types.UID) (types.UID, error) {
	data, err := os.ReadFile(process + "/cgroup")
	if err != nil {
		return "", err
	}
	text := strings.ReplaceAll(string(data), "_", "-")
	for _, pod := range pods {
		if strings.Contains(text, "pod"+strings.ReplaceAll(string(pod), "_", "-")) {
			return pod, nil
		}
	}
	return "", nil
}

func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
