package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// errShared says that a process shares its cgroup with others.
var errShared = errors.New("it shares its cgroup")

// cgroup is where the kernel counts the memory of a process, with the names of the files.
type cgroup struct {
	dir, usage, inactive string
}

// countedIn parses /proc/PID/cgroup. Where both versions exist, v1 counts memory if it has a
// hierarchy for that.
func countedIn(text string) cgroup {
	g := cgroup{usage: "memory.current", inactive: "inactive_file"}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			return cgroup{dir: "/sys/fs/cgroup/memory" + parts[2], usage: "memory.usage_in_bytes", inactive: "total_inactive_file"}
		case parts[1] == "":
			g.dir = "/sys/fs/cgroup" + parts[2]
		}
	}
	return g
}

// cgroupOf finds the cgroup of a process. It returns errShared if other processes are in it,
// because the cgroup then counts their memory too.
func cgroupOf(pid int) (cgroup, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return cgroup{}, err
	}
	g := countedIn(string(text))
	members, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil {
		return cgroup{}, err
	}
	if strings.TrimSpace(string(members)) != strconv.Itoa(pid) {
		return cgroup{}, fmt.Errorf("%w %s; start it as hack/bench-memory.sh does", errShared, g.dir)
	}
	return g, nil
}

// workingSet is the kubelet's figure for a container's memory, by which it evicts. That is all
// memory charged to its cgroup, the kernel's included, less the pages of files that have not been
// used again.
func workingSet(pid int) (int64, error) {
	g, err := cgroupOf(pid)
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(g.dir, g.usage))
	if err != nil {
		return 0, err
	}
	usage, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s of %s: %w", g.usage, g.dir, err)
	}
	inactive, err := g.stat(g.inactive)
	return max(usage-inactive, 0), err
}

// stat reads one number of memory.stat.
func (g cgroup) stat(name string) (int64, error) {
	path := filepath.Join(g.dir, "memory.stat")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}
