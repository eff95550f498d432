package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// account is a cgroup that this process joins. All that it starts is in it too, also a daemon that
// has left its parent, such as an API server, and one that was killed. So is what a suite compiles.
type account struct {
	dir, former string
	usage       func(dir string) (seconds float64, err error)
	own         float64
}

// hierarchies are where a cgroup can be made: of version 2, and of version 1.
var hierarchies = []struct {
	root, controller string
	usage            func(dir string) (float64, error)
}{
	{"/sys/fs/cgroup", "", func(dir string) (float64, error) { return number(dir, "cpu.stat", "usage_usec ", 1e6) }},
	{"/sys/fs/cgroup/cpuacct", "cpuacct", func(dir string) (float64, error) { return number(dir, "cpuacct.usage", "", 1e9) }},
}

// openAccount makes the cgroup and joins it. It fails for a user who may not, and then processor time
// is not known.
func openAccount() (*account, error) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, h := range hierarchies {
		dir := filepath.Join(h.root, fmt.Sprintf("tarn-testsum-%d", os.Getpid()))
		a := &account{dir: dir, usage: h.usage, own: ownSeconds()}
		for line := range strings.Lines(string(groups)) { // number:controllers:path
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(parts) == 3 && slices.Contains(strings.Split(parts[1], ","), h.controller) {
				a.former = filepath.Join(h.root, parts[2])
			}
		}
		// The way back must be there: in a container the path may be that of the host.
		_, err := os.Stat(filepath.Join(a.former, "cgroup.procs"))
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := join(dir); err != nil {
			return nil, errors.Join(err, os.Remove(dir))
		}
		return a, nil
	}
	return nil, errors.Join(errs...)
}

// close gives the processor seconds that were used, without this process's own, and leaves the cgroup.
// It stays where a daemon of the suite still runs.
func (a *account) close() (float64, error) {
	used, err := a.usage(a.dir)
	if err != nil {
		return 0, err
	}
	if err := join(a.former); err != nil {
		return 0, err
	}
	_ = os.Remove(a.dir) // empty, unless a daemon was left running or has just been killed
	return used - (ownSeconds() - a.own), nil
}

func join(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// number reads the line of a file that begins with a prefix, in units of which a second has per.
func number(dir, name, prefix string, per float64) (float64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), prefix); found {
			n, err := strconv.ParseFloat(rest, 64)
			return n / per, err
		}
	}
	return 0, fmt.Errorf("%s/%s has no line %q", dir, name, prefix)
}

// ownSeconds is the processor time of this process alone.
func ownSeconds() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // fails for no process
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
