package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Needs are the requirements of a cluster, checked before anything starts.
type Needs struct {
	Node     bool   // it will run pods
	Data     string // where it keeps its data
	Programs string // the directory of its programs
}

// minKernel is the oldest kernel that has all we use. Pidfds that can be polled came with 5.3.
var minKernel = [2]int{5, 4}

// minFree is the free disk space, in bytes, below which the kubelet would soon evict pods.
const (
	minFree             = 5 << 30
	minFreeControlPlane = 1 << 29
)

// Check returns the first reason why a cluster cannot run here, as one line that says what to do.
func Check(n Needs) error {
	checks := []func(Needs) error{checkRoot, checkKernel, checkPrograms, checkDisk}
	if n.Node {
		checks = append(checks, checkCgroups, checkOverlay, checkRunc)
	}
	for _, check := range checks {
		if err := check(n); err != nil {
			return err
		}
	}
	return nil
}

func checkRoot(Needs) error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("running as user %d: a cluster needs root for namespaces and mounts: run the command with sudo", uid)
	}
	return nil
}

func checkKernel(Needs) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("reading the kernel version: %w", err)
	}
	release := string(bytes.TrimRight(u.Release[:], "\x00"))
	if tooOld(release) {
		return fmt.Errorf("kernel %s is too old: %d.%d or newer is needed", release, minKernel[0], minKernel[1])
	}
	return nil
}

func tooOld(release string) bool {
	var major, minor int
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 || err != nil {
		return false // not a number that can be compared, so let it try
	}
	return major < minKernel[0] || (major == minKernel[0] && minor < minKernel[1])
}

func checkPrograms(n Needs) error {
	programs := []string{"etcd", "kube"}
	if n.Node {
		programs = append(programs, "containerd", "containerd-shim-runc-v2", "ctr", "runc", "pause", "cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap")
	}
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(n.Programs, name)); err != nil {
			return fmt.Errorf("program %s is missing in %s: build it with `make -C cluster build`", name, n.Programs)
		}
	}
	return nil
}

func checkDisk(n Needs) error {
	dir := n.Data
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	free, need := fs.Bavail*uint64(fs.Bsize), uint64(minFreeControlPlane)
	if n.Node {
		need = minFree
	}
	if free < need {
		return fmt.Errorf("%s has %.1f GiB free and %.1f GiB are needed: free some, or choose another disk with --data-dir", dir, gib(free), gib(need))
	}
	return nil
}

func gib(bytes uint64) float64 { return float64(bytes) / (1 << 30) }

// checkCgroups accepts v2, or v1 with every controller a container needs.
func checkCgroups(Needs) error {
	mounts, err := ReadMounts("self")
	if err != nil {
		return err
	}
	if missing := missingControllers(mounts); len(missing) > 0 {
		return fmt.Errorf("cgroup controller %s is not mounted: mount it (mount -t cgroup -o %s cgroup /sys/fs/cgroup/%s), or boot with cgroup v2", missing[0], missing[0], missing[0])
	}
	return nil
}

func missingControllers(mounts []*mountinfo.Info) []string {
	needed := []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"}
	for _, m := range mounts {
		if m.FSType == "cgroup2" && m.Mountpoint == "/sys/fs/cgroup" {
			return nil
		}
		if m.FSType == "cgroup" {
			needed = slices.DeleteFunc(needed, func(c string) bool { return slices.Contains(strings.Split(m.VFSOptions, ","), c) })
		}
	}
	return needed
}

func checkOverlay(Needs) error {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("reading the kernel's file systems: %w", err)
	}
	if strings.Contains(string(known), "\toverlay\n") {
		return nil
	}
	if err := exec.Command("modprobe", "overlay").Run(); err != nil {
		return fmt.Errorf("the kernel has no overlay file system, which containers need: load it with `modprobe overlay`, or boot a kernel that has it")
	}
	return nil
}

// checkRunc runs runc, the only one of our programs that needs a shared library.
func checkRunc(n Needs) error {
	out, err := exec.Command(filepath.Join(n.Programs, "runc"), "--version").CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.Join(strings.Fields(string(out)), " ") // in one line, however many it has used
	if strings.Contains(text, "shared libraries") {
		return fmt.Errorf("runc does not start (%s): install libseccomp (Debian: apt-get install libseccomp2)", text)
	}
	return fmt.Errorf("runc does not start: %w: %s", err, text)
}

// CanLowerOOMScore reports whether this process, and so every container, may lower an
// oom_score_adj.
func CanLowerOOMScore() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if hex, found := strings.CutPrefix(line, "CapEff:"); found {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return false
}

// PacketFilter names the tool that can give services their addresses here: "nftables", "iptables"
// or "". It makes the tool list its rules, which fails where the kernel lacks support.
func PacketFilter() string {
	if exec.Command("nft", "list", "tables").Run() == nil {
		return "nftables"
	}
	if exec.Command("iptables", "-w", "-t", "nat", "-n", "-L").Run() == nil {
		return "iptables"
	}
	return ""
}
