package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"tarn.dev/tarn/jinja"
	"tarn.dev/tarn/provisioners"
)

// shelf runs the scripts of a ready provisioner's pods in a directory of this machine.
type shelf struct {
	t           *testing.T
	provisioner string
	// volumes and pav stand for the directories of those names in the pods.
	volumes, pav string
	// programs is a directory whose programs override the machine's; empty for none.
	programs string
}

// step runs the pod at a path below spec, such as volumeCreation podTemplate, and returns its
// output.
func (s *shelf) step(vars map[string]any, path ...string) (string, error) {
	s.t.Helper()
	o, err := provisioners.Provisioner(s.provisioner)
	if err != nil {
		s.t.Fatal(err)
	}
	containers, found, err := unstructured.NestedSlice(o.Object, append(append([]string{"spec"}, path...), "spec", "containers")...)
	if err != nil || !found {
		s.t.Fatalf("%s is no pod: %v", path, err)
	}
	evaluated, err := jinja.Evaluate(s.t.Context(), containers[0], vars, jinja.Limits{})
	if err != nil {
		s.t.Fatal(err)
	}
	container := evaluated.(map[string]any)
	shell := container["command"].([]any)
	text := strings.NewReplacer("/tmp/pool", s.pav+"/pool", "/pool", s.volumes, "/volumes", s.volumes, "/pav/", s.pav+"/", "/tmp/said", s.pav+"/said").
		Replace(container["args"].([]any)[0].(string))
	command := exec.CommandContext(s.t.Context(), shell[0].(string), shell[1].(string), text)
	command.Env = append(os.Environ(), "PATH="+s.programs+":"+os.Getenv("PATH"))
	env, _ := container["env"].([]any)
	for _, e := range env {
		command.Env = append(command.Env, fmt.Sprintf("%s=%s", e.(map[string]any)["name"], e.(map[string]any)["value"]))
	}
	out, err := command.CombinedOutput()
	return string(out), err
}

// size creates volume v with a number of bytes, or expands it by section volumeExpansion. It
// returns the pod's output.
func (s *shelf) size(section string, bytes int) string {
	s.t.Helper()
	vars := map[string]any{"defaultHandle": "v", "requestedMinCapacity": bytes, "params": map[string]any{}}
	if section == "volumeExpansion" {
		vars = map[string]any{"handle": "v", "newCapacity": bytes, "params": map[string]any{}}
	}
	out, err := s.step(vars, section, "podTemplate")
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", section, err, out)
	}
	return out
}

func (s *shelf) program(name, script string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // it is run
		s.t.Fatal(err)
	}
}

func TestASharedVolumeIsGivenAProjectQuotaWhereItsFileSystemHasThem(t *testing.T) {
	s := &shelf{t: t, provisioner: "shared", volumes: t.TempDir(), pav: t.TempDir(), programs: t.TempDir()}
	asked := filepath.Join(t.TempDir(), "asked")
	s.program("xfs_quota", `for word; do last=$word; [ "${word#* }" = "$word" ] || echo "$word" >> `+asked+`; done; echo "$last" >> `+asked)
	s.program("findmnt", "echo rw,relatime,prjquota")
	s.size("volumeCreation", 1<<20)
	s.size("volumeExpansion", 2<<20)
	folder := filepath.Join(s.volumes, "v")
	record, err := os.ReadFile(filepath.Join(s.volumes, ".tarn", "v"))
	if err != nil {
		t.Fatal(err)
	}
	var project int
	if _, err := fmt.Sscan(string(record), &project); err != nil || project < 1 || project > 1<<31 {
		t.Fatalf("the project is %q: %v", record, err)
	}
	var want strings.Builder
	for _, bytes := range []int{1 << 20, 2 << 20} {
		fmt.Fprintf(&want, "project -s -p %s %d\n%s\nlimit -p bhard=%d %d\n%s\n", folder, project, s.volumes, bytes, project, s.volumes)
	}
	if got, err := os.ReadFile(asked); err != nil || string(got) != want.String() {
		t.Errorf("xfs_quota was asked (%v)\n%swant\n%s", err, got, want.String())
	}

	s.program("findmnt", "echo rw,relatime,noquota")
	if said := s.size("volumeExpansion", 3<<20); !strings.Contains(said, "has no project quotas: nothing keeps "+folder+" to 3.0Mi") {
		t.Errorf("without quotas it says %q", said)
	}
	if got, err := os.ReadFile(asked); err != nil || string(got) != want.String() {
		t.Errorf("without quotas xfs_quota was asked (%v)\n%s", err, got)
	}
}

// immutable makes a directory such that nothing can be written there, as an administrator makes one
// below a mount, until back is called.
func immutable(t *testing.T, directory string) (back func()) {
	t.Helper()
	chattr := func(flag string) {
		t.Helper()
		if out, err := exec.CommandContext(context.Background(), "chattr", flag, directory).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	chattr("+i")
	back = func() { chattr("-i") }
	t.Cleanup(back)
	return back
}

func TestADeletionFailsWhereTheDiskOfACreatedVolumeIsNotMounted(t *testing.T) {
	for _, provisioner := range []string{"btrfs", "shared", "xfs"} {
		s := &shelf{t: t, provisioner: provisioner, volumes: t.TempDir(), pav: t.TempDir()}
		remove := func(created bool) (string, error) {
			_ = os.Remove(filepath.Join(s.pav, "error"))
			out, err := s.step(map[string]any{"handle": "v", "defaultHandle": "pvc-1", "created": created, "params": map[string]any{"folder": "/mnt/a b"}}, "volumeDeletion", "podTemplate")
			said, _ := os.ReadFile(filepath.Join(s.pav, "error"))
			return out + string(said), err
		}
		waits := func(created bool) {
			t.Helper()
			said, err := remove(created)
			for _, want := range []string{"/mnt/a b has no ", "mount ", " and the volume is deleted by itself", "tarn forget volume "} {
				if err == nil || !strings.Contains(said, want) {
					t.Errorf("%s, created %t: %v, it says %q, want %q", provisioner, created, err, said, want)
				}
			}
		}
		ends := func(created bool) {
			t.Helper()
			if said, err := remove(created); err != nil {
				t.Errorf("%s, created %t: %v, it says %q", provisioner, created, err, said)
			}
		}
		ends(false) // what was never made is deleted, as after a creation whose pod did not start
		waits(true) // and that leaves no mark
		back := immutable(t, s.volumes)
		waits(false)
		waits(true)
		back()
		if provisioner == "btrfs" { // a pool needs a kernel with btrfs
			continue
		}
		// A volume of a version that left no mark. The result of its deletion may be lost.
		old := filepath.Join(s.volumes, "v")
		err := os.Mkdir(old, 0o700)
		if provisioner == "xfs" {
			err = errors.Join(os.Remove(old), os.WriteFile(old, nil, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		ends(true)
		if _, err := os.Stat(old); err == nil {
			t.Errorf("%s deletes no volume without a mark", provisioner)
		}
		ends(true)
	}
}

func TestADirectoryThatIsNotMountedNeitherGrowsNorDeletesAVolume(t *testing.T) {
	for _, provisioner := range []string{"xfs", "shared"} {
		s := &shelf{t: t, provisioner: provisioner, volumes: t.TempDir(), pav: t.TempDir()}
		vars := map[string]any{
			"requestedMinCapacity": 1 << 20, "defaultHandle": "v",
			"params": map[string]any{"folder": "/mnt/a b", "csi.storage.k8s.io/fstype": "ext4"},
		}
		later := maps.Clone(vars)
		later["handle"], later["newCapacity"], later["created"] = "v", 2<<20, true
		left := func(want ...string) {
			t.Helper()
			entries, err := os.ReadDir(s.volumes)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			if !slices.Equal(names, want) {
				t.Errorf("the directory of %s has %q, want %q", provisioner, names, want)
			}
		}
		back := immutable(t, s.volumes)
		for section, want := range map[string]string{
			"volumeDeletion":  "/mnt/a b has no volumes on this node: mount ",
			"volumeExpansion": map[string]string{"xfs": "No such file", "shared": "/mnt/a b has no v on this node"}[provisioner],
		} {
			_, err := s.step(later, section, "podTemplate")
			if said, _ := os.ReadFile(filepath.Join(s.pav, "error")); err == nil || !strings.Contains(string(said), want) {
				t.Errorf("%s of %s: %v, it says %q, want %q", section, provisioner, err, said, want)
			}
			left()
		}
		back()
		if out, err := s.step(vars, "volumeCreation", "podTemplate"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		left(".tarn", "v")
		for range 2 { // the first may have been killed after its work
			if out, err := s.step(later, "volumeDeletion", "podTemplate"); err != nil {
				t.Errorf("%s: %v\n%s", provisioner, err, out)
			}
			left(".tarn")
		}
	}
}

func TestNoOtherUserOfTheNodeReadsAVolume(t *testing.T) {
	for _, provisioner := range []string{"xfs", "shared"} {
		s := &shelf{t: t, provisioner: provisioner, volumes: t.TempDir(), pav: t.TempDir()}
		vars := map[string]any{
			"defaultHandle": "v", "requestedMinCapacity": 1 << 20, "params": map[string]any{"csi.storage.k8s.io/fstype": "ext4"},
		}
		if out, err := s.step(vars, "volumeCreation", "podTemplate"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, path := range []string{s.volumes, filepath.Join(s.volumes, "v")} {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			// A volume's own directory has the mode that its pods need, but lies in one that others
			// cannot enter.
			if open := info.Mode().Perm()&0o077 != 0; open && (path == s.volumes || !info.IsDir()) {
				t.Errorf("%s: %s is %v", provisioner, path, info.Mode())
			}
		}
	}
}

func TestASharedVolumeIsHeldToItsSizeByAProjectQuota(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("file systems are mounted by root alone")
	}
	image, folder := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 320<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.xfs", "-q", image).CombinedOutput(); err != nil {
		t.Skipf("no xfs can be made here: %v %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop,prjquota", image, folder).CombinedOutput(); err != nil {
		t.Skipf("this kernel mounts no xfs with project quotas (CONFIG_XFS_QUOTA): %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", folder).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	s := &shelf{t: t, provisioner: "shared", volumes: folder, pav: t.TempDir()}
	fill := func(name string, bytes int) error {
		return os.WriteFile(filepath.Join(folder, "v", name), make([]byte, bytes), 0o600)
	}
	s.size("volumeCreation", 8<<20)
	if err := fill("first", 6<<20); err != nil {
		t.Fatalf("6 MiB in 8: %v", err)
	}
	if err := fill("second", 6<<20); err == nil {
		t.Error("12 MiB went into a volume of 8")
	}
	s.size("volumeExpansion", 16<<20)
	if err := fill("second", 6<<20); err != nil {
		t.Errorf("12 MiB in a volume that was made 16: %v", err)
	}
}
