package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/layout"
)

func TestMountsBelowAFolderComeDeepestFirstAndNeighboursStayOut(t *testing.T) {
	mounts := []*mountinfo.Info{{Mountpoint: "/"}, {Mountpoint: "/d"}, {Mountpoint: "/d/a"}, {Mountpoint: "/data"}, {Mountpoint: "/d/a/b"}}
	if got, want := Below(mounts, "/d"), []string{"/d/a/b", "/d/a", "/d"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAFolderIsNeverDeletedThroughAMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts, and so needs root: run it with sudo")
	}
	outside, tree := t.TempDir(), t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	point := filepath.Join(tree, "deep", "point")
	if err := os.MkdirAll(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(outside, point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) }) //nolint:errcheck // gone if all is well
	busy, err := os.Open(precious)
	if err != nil {
		t.Fatal(err)
	}
	if inside, err := os.Open(filepath.Join(point, "precious")); err != nil {
		t.Fatal(err)
	} else {
		if err := RemoveTree(tree); err == nil || !strings.Contains(err.Error(), point) {
			t.Errorf("removing a tree with a busy mount: %v; want an error that names %s", err, point)
		}
		inside.Close()
	}
	busy.Close()
	if err := RemoveTree(tree); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("a file of another file system was deleted: %v", err)
	}
	if _, err := os.Stat(tree); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}

func TestMissingCgroupControllersAreNamed(t *testing.T) {
	var v1 []*mountinfo.Info
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"} {
		v1 = append(v1, &mountinfo.Info{FSType: "cgroup", Mountpoint: "/sys/fs/cgroup/" + c, VFSOptions: "rw," + c})
	}
	if got := missingControllers(v1); len(got) != 0 {
		t.Errorf("all are mounted, and %v are said to be missing", got)
	}
	if got := missingControllers(v1[:6]); !slices.Equal(got, []string{"pids"}) {
		t.Errorf("pids is not mounted; got %v", got)
	}
	if got := missingControllers([]*mountinfo.Info{{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup"}}); len(got) != 0 {
		t.Errorf("cgroup v2 has everything; got %v", got)
	}
	if got := missingControllers([]*mountinfo.Info{{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup/unified"}}); len(got) == 0 {
		t.Error("a v2 hierarchy beside v1 carries no controllers, and none is said to be missing")
	}
}

func TestTheRootAndTheClustersCgroupDelegateTheControllersOfPodsThatAreStillOff(t *testing.T) {
	root := t.TempDir()
	for file, content := range map[string]string{
		"cgroup.controllers": "cpu memory pids misc\n", "cgroup.subtree_control": "cpu pids\n",
		// The kernel makes these files with the directory.
		"c/cgroup.controllers": "cpu\n", "c/cgroup.subtree_control": "\n",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeCgroup(&mountinfo.Info{FSType: "cgroup2", Root: "/", Mountpoint: root}, "c"); err != nil {
		t.Fatal(err)
	}
	// A plain file keeps the last value written to it; the kernel would apply each.
	for dir, want := range map[string]string{
		root:                     "+memory", // cpu and pids are on, misc is nothing a pod needs
		filepath.Join(root, "c"): "+cpu",
	} {
		got, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("in %s last wrote %q, want %s", dir, got, want)
		}
	}
}

func TestThePodOfAProcessIsReadFromItsCgroups(t *testing.T) {
	const uid = "8c9e0f1a-2b3c-4d5e-8f90-a1b2c3d4e5f6"
	for cgroup, want := range map[string]string{
		"0::/tarn-cluster-x/kubepods/besteffort/pod" + uid + "/0a1b2c\n":         uid, // v2
		"0::/tarn-cluster-x/kubepods/pod" + uid + "/0a1b2c\n":                    uid, // of guaranteed resources
		"0::/../tarn-cluster-x/kubepods/burstable/pod" + uid + "/0a1b2c/below\n": uid, // from within another namespace of cgroups
		"0::/tarn-cluster-x/kubepods/burstable/pod" + uid + "\n":                 uid,
		// v1: hierarchies without controllers may not know of pods.
		"9:name=systemd:/\n4:memory:/tarn-cluster-x/kubepods/burstable/pod" + uid + "/0a1b2c\n1:cpu:/tarn-cluster-x/kubepods/burstable/pod" + uid + "/0a1b2c\n0::/\n": uid,
		// A kubelet within a pod: the outer pod is the one we want.
		"0::/tarn-cluster-x/kubepods/pod" + uid + "/0a1b2c/kubepods/pod11111111-2222-3333-4444-555555555555/3d4e5f\n": uid,
		"0::/system.slice/containerd.service\n": "",
		"0::/tarn-cluster-x/kubepods\n":         "",
		"0::/user/podman/podium\n":              "",
		"":                                      "",
	} {
		if got := PodOf(cgroup); got != want {
			t.Errorf("%q is of pod %q, want %q", cgroup, got, want)
		}
	}
}

func TestOldKernelsAreRefused(t *testing.T) {
	for release, want := range map[string]bool{"4.19.0-26-amd64": true, "5.3.18": true, "5.4.0": false, "6.18.44-x": false, "weird": false} {
		if got := tooOld(release); got != want {
			t.Errorf("tooOld(%q) = %t", release, got)
		}
	}
}

func TestAnOldKernelIsToldWithWhatIsNeeded(t *testing.T) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	needed := minKernel
	t.Cleanup(func() { minKernel = needed })
	minKernel = [2]int{999, 4}
	want := "kernel " + strings.TrimSpace(string(release)) + " is too old: 999.4 or newer is needed"
	if err := Check(Needs{Programs: "/none"}); err == nil || err.Error() != want {
		t.Errorf("where a kernel of the future is needed:\n got %v\nwant %s", err, want)
	}
}

func TestMissingProgramsAreNamedWithTheRemedy(t *testing.T) {
	err := checkPrograms(Needs{Programs: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "etcd") || !strings.Contains(err.Error(), "make") {
		t.Errorf("an empty folder of programs: %v", err)
	}
}

func TestTooLittleDiskIsToldWithTheRemedy(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tarn-test", disk, "tmpfs", 0, "size=1g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(disk, unix.MNT_DETACH) }) //nolint:errcheck // it is this test's own
	for _, c := range []struct {
		data string
		node bool
		want string
	}{
		{disk, false, ""},
		{disk, true, disk + " has 1.0 GiB free and 5.0 GiB are needed: free some, or choose another disk with --data-dir"},
		{filepath.Join(disk, "not", "there", "yet"), true, disk + " has 1.0 GiB free and 5.0 GiB are needed: free some, or choose another disk with --data-dir"},
	} {
		got := ""
		if err := checkDisk(Needs{Data: c.data, Node: c.node}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("data in %s, a node: %t:\n got %q\nwant %q", c.data, c.node, got, c.want)
		}
	}
}

func TestARuncThatDoesNotStartIsToldInOneLine(t *testing.T) {
	const missing = "runc: error while loading shared libraries: libseccomp.so.2: cannot open shared object file: No such file or directory"
	for _, c := range []struct{ script, want string }{
		{"echo runc version 1", ""},
		{"echo '" + missing + "' >&2; exit 127", "runc does not start (" + missing + "): install libseccomp (Debian: apt-get install libseccomp2)"},
		{"echo one; echo two >&2; exit 3", "runc does not start: exit status 3: one two"},
	} {
		programs := t.TempDir()
		if err := os.WriteFile(filepath.Join(programs, "runc"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := checkRunc(Needs{Programs: programs}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("a runc that does %q:\n got %q\nwant %q", c.script, got, c.want)
		}
	}
}

func TestNameServersAreReadFromAResolverFile(t *testing.T) {
	text := "# c\nsearch a\nnameserver 192.0.2.1\nnameserver bad\nnameserver fd00::1\noptions x\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n"
	if got, want := NameServers([]byte(text)), []string{"192.0.2.1", "fd00::1", "192.0.2.2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAProcessOutsideOfAnyClusterIsNoSupervisor(t *testing.T) {
	l, err := layout.New("nobody-has-this-name", "")
	if err != nil {
		t.Fatal(err)
	}
	h, err := Supervisor(l)
	if err != nil || h != nil {
		t.Errorf("found %v, %v", h, err)
	}
}

func TestHostProcessNumbersAreReadFromHandles(t *testing.T) {
	pids, err := OpenHostPIDs()
	if err != nil {
		t.Fatal(err)
	}
	if self, err := pids.Self(); err != nil || self != os.Getpid() {
		t.Errorf("Self() = %d, %v; this is process %d", self, err, os.Getpid())
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	handle := os.NewFile(uintptr(fd), "pidfd")
	defer handle.Close()
	if got := pids.Of(handle); got != os.Getpid() {
		t.Errorf("Of(self) = %d, want %d", got, os.Getpid())
	}
}
