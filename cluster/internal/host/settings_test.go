package host

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fakeMachine is a machine whose settings are plain files. Its one cgroup root enables cpu, and not
// io, for its children.
type fakeMachine struct {
	settings
	t *testing.T
}

func newFakeMachine(t *testing.T, sysctls map[string]int) fakeMachine {
	dir := t.TempDir()
	m := fakeMachine{settings{file: filepath.Join(dir, "record"), sysctls: filepath.Join(dir, "sys"), roots: []string{filepath.Join(dir, "cgroup")}}, t}
	for name, value := range sysctls {
		m.set(name, value)
	}
	m.cgroup("cpu io misc", "cpu")
	return m
}

func (m fakeMachine) put(path, content string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m fakeMachine) set(name string, value int) {
	m.t.Helper()
	m.put(filepath.Join(m.sysctls, name), strconv.Itoa(value)+"\n")
}

func (m fakeMachine) cgroup(available, enabled string) {
	m.t.Helper()
	m.put(filepath.Join(m.roots[0], "cgroup.controllers"), available+"\n")
	m.put(filepath.Join(m.roots[0], "cgroup.subtree_control"), enabled+"\n")
}

// up makes the changes of a cluster's start.
func (m fakeMachine) up(node bool) {
	m.t.Helper()
	if err := m.prepare(node); err != nil {
		m.t.Fatal(err)
	}
	if !node {
		return
	}
	for name, value := range kubeletSysctls {
		if _, err := os.Stat(filepath.Join(m.sysctls, name)); err == nil {
			m.set(name, value)
		}
	}
	m.cgroup("cpu io misc", "cpu io")
}

// down ends the last cluster. It returns the sysctls, and what was written to the cgroup root last.
func (m fakeMachine) down() (sysctls map[string]int, control string) {
	m.t.Helper()
	if err := m.restore(); err != nil {
		m.t.Fatal(err)
	}
	if _, err := os.Stat(m.settings.file); !os.IsNotExist(err) {
		m.t.Errorf("the record is still there: %v", err)
	}
	sysctls = map[string]int{}
	for _, name := range slices.Collect(maps.Keys(kubeletSysctls)) {
		if value, err := readInt(filepath.Join(m.sysctls, name)); err == nil {
			sysctls[name] = value
		}
	}
	var err error
	if sysctls[inotifySysctl], err = readInt(filepath.Join(m.sysctls, inotifySysctl)); err != nil {
		m.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(m.roots[0], "cgroup.subtree_control"))
	if err != nil {
		m.t.Fatal(err)
	}
	return sysctls, strings.TrimSpace(string(text))
}

func TestTheLastClusterPutsTheSettingsOfTheMachineBack(t *testing.T) {
	before := map[string]int{
		"kernel/keys/root_maxbytes": 20000, "kernel/keys/root_maxkeys": 200, "kernel/panic": 0, "kernel/panic_on_oops": 0,
		"vm/overcommit_memory": 2, "vm/panic_on_oom": 1, inotifySysctl: 128,
	}
	with := func(changes map[string]int) map[string]int {
		all := maps.Clone(before)
		maps.Copy(all, changes)
		return all
	}
	for what, c := range map[string]struct {
		before  map[string]int
		run     func(fakeMachine)
		want    map[string]int
		control string
	}{
		"one cluster": {before, func(m fakeMachine) { m.up(true) }, before, "-io"},
		"one that is up again after its end was not orderly": {before, func(m fakeMachine) { m.up(true); m.up(true) }, before, "-io"},
		"two, the first without a node":                      {before, func(m fakeMachine) { m.up(false); m.up(true) }, before, "-io"},
		"no node":                                            {before, func(m fakeMachine) { m.up(false) }, before, "cpu"},
		"values of the administrator's from before the second": {before, func(m fakeMachine) {
			m.up(true)
			m.set("kernel/panic", 60)
			m.up(true)
		}, with(map[string]int{"kernel/panic": 60}), "-io"},
		"values of the administrator's from after the last": {before, func(m fakeMachine) {
			m.up(true)
			m.set("vm/overcommit_memory", 0)
			m.set(inotifySysctl, 2048)
			m.cgroup("cpu io misc", "cpu")
		}, with(map[string]int{"vm/overcommit_memory": 0, inotifySysctl: 2048}), "cpu"},
		"values that suit the kubelet": {with(kubeletSysctls), func(m fakeMachine) { m.up(true) }, with(kubeletSysctls), "-io"},
		"enough inotify instances":     {with(map[string]int{inotifySysctl: 8192}), func(m fakeMachine) { m.up(true) }, with(map[string]int{inotifySysctl: 8192}), "-io"},
		"a kernel without keys": {
			map[string]int{"kernel/panic": 0, "kernel/panic_on_oops": 0, "vm/overcommit_memory": 0, "vm/panic_on_oom": 0, inotifySysctl: 128},
			func(m fakeMachine) { m.up(true) },
			map[string]int{"kernel/panic": 0, "kernel/panic_on_oops": 0, "vm/overcommit_memory": 0, "vm/panic_on_oom": 0, inotifySysctl: 128}, "-io"},
	} {
		t.Run(what, func(t *testing.T) {
			m := newFakeMachine(t, c.before)
			c.run(m)
			if got, control := m.down(); !maps.Equal(got, c.want) || control != c.control {
				t.Errorf("left behind:\n got %v, cgroup root %q\nwant %v, cgroup root %q", got, control, c.want, c.control)
			}
		})
	}
}

func TestRootMayWatchMoreFilesWhileAClusterRuns(t *testing.T) {
	m := newFakeMachine(t, map[string]int{inotifySysctl: 128})
	m.up(false)
	if got, err := readInt(filepath.Join(m.sysctls, inotifySysctl)); err != nil || got != inotifyInstances {
		t.Errorf("%s is %d, %v; want %d", inotifySysctl, got, err, inotifyInstances)
	}
}
