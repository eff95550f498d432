package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

const inotifySysctl = "fs/inotify/max_user_instances"

// inotifyInstances is enough for about forty clusters. A whole cluster uses 21 (measured: kubelet
// 6, API server 6, controller manager 5, containerd 2, proxy and node agent 1 each). Linux allows a
// user 128 by default, so a sixth kubelet would not start.
const inotifyInstances = 1024

// kubeletSysctls are the machine-wide settings that the kubelet changes when it starts
// (setupKernelTunables in its container manager). The kubelet has no option to leave them; it can
// only fail instead.
var kubeletSysctls = map[string]int{
	"kernel/keys/root_maxbytes": 25000000,
	"kernel/keys/root_maxkeys":  1000000,
	"kernel/panic":              10,
	"kernel/panic_on_oops":      1,
	"vm/overcommit_memory":      1,
	"vm/panic_on_oom":           0,
}

// settings are the machine-wide settings that clusters change: sysctls, and the controllers of
// cgroup v2 roots.
type settings struct {
	file    string   // the record
	sysctls string   // usually /proc/sys
	roots   []string // of cgroup v2
}

// record holds the settings as they were before clusters changed them. It lies below /run, so a
// reboot discards both the record and the changes.
type record struct {
	Sysctls     map[string]change   // by path below /proc/sys
	Controllers map[string][]string // by cgroup root: those that were off for its children
}

type change struct{ Before, Set int }

func machineSettings() (settings, error) {
	mounts, err := ReadMounts("self")
	if err != nil {
		return settings{}, err
	}
	s := settings{file: filepath.Join(layout.RunRoot(), "settings-before.json"), sysctls: "/proc/sys"}
	for _, m := range mounts {
		if m.FSType == "cgroup2" && m.Root == "/" {
			s.roots = append(s.roots, m.Mountpoint)
		}
	}
	return s, nil
}

// PrepareSettings records the settings that the cluster is about to change. It also lets root watch
// more files than Linux does by default. SweepShared restores the settings.
func PrepareSettings(node bool) error {
	unlock, err := layout.LockShared("allot")
	if err != nil {
		return err
	}
	defer unlock()
	s, err := machineSettings()
	if err != nil {
		return err
	}
	return s.prepare(node)
}

// prepare keeps an earlier cluster's record of a setting that still has the value clusters give it.
func (s settings) prepare(node bool) error {
	r, err := s.read()
	if err != nil {
		return err
	}
	before, err := readInt(filepath.Join(s.sysctls, inotifySysctl))
	if err != nil {
		return err
	}
	if before < inotifyInstances {
		r.Sysctls[inotifySysctl] = change{before, inotifyInstances}
	}
	if node {
		if err := s.recordNode(r); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the settings of the machine: %w", err)
	}
	if err := layout.WriteFile(s.file, raw, 0o600); err != nil || before >= inotifyInstances {
		return err
	}
	return s.write(inotifySysctl, inotifyInstances)
}

// recordNode records the settings that a kubelet and its containers change.
func (s settings) recordNode(r record) error {
	for name, set := range kubeletSysctls {
		now, err := readInt(filepath.Join(s.sysctls, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without keys
		}
		if err != nil {
			return err
		}
		if now != set {
			r.Sysctls[name] = change{now, set}
		}
	}
	for _, root := range s.roots {
		available, enabled, err := controllers(root)
		if err != nil {
			return err
		}
		for _, c := range available {
			if !slices.Contains(enabled, c) && !slices.Contains(r.Controllers[root], c) {
				r.Controllers[root] = append(r.Controllers[root], c)
			}
		}
	}
	return nil
}

// restore restores the settings. It skips those changed meanwhile, and controllers that other
// cgroups use.
func (s settings) restore() error {
	r, err := s.read()
	if err != nil {
		return err
	}
	for name, c := range r.Sysctls {
		now, err := readInt(filepath.Join(s.sysctls, name))
		if err != nil {
			return err
		}
		if now != c.Set {
			continue
		}
		if err := s.write(name, c.Before); err != nil {
			return err
		}
	}
	for root, off := range r.Controllers {
		_, enabled, err := controllers(root)
		if errors.Is(err, fs.ErrNotExist) {
			continue // unmounted meanwhile
		}
		if err != nil {
			return err
		}
		for _, c := range off {
			if !slices.Contains(enabled, c) {
				continue
			}
			err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("-"+c), 0)
			if err != nil && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("disabling the cgroup controller %s in %s: %w", c, root, err)
			}
		}
	}
	if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s settings) read() (record, error) {
	r := record{Sysctls: map[string]change{}, Controllers: map[string][]string{}}
	raw, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("reading the saved settings of the machine: %w", err)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("reading the saved settings of the machine from %s: %w: remove the file to keep the current settings", s.file, err)
	}
	return r, nil
}

func (s settings) write(name string, value int) error {
	if err := os.WriteFile(filepath.Join(s.sysctls, name), []byte(strconv.Itoa(value)), 0); err != nil {
		return fmt.Errorf("setting %s to %d: %w", strings.ReplaceAll(name, "/", "."), value, err)
	}
	return nil
}

func readInt(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading a number: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("reading a number from %s: %w", path, err)
	}
	return n, nil
}
