package hostpath_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/hostpath"
	"tarn.dev/tarn/internal/plugin/plugintest"
)

// newRoot gives the plugin with its own root.
func newRoot(t *testing.T) (plugin.Plugin, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	p, err := hostpath.New(root, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	return p, root
}

func request(name string) plugin.Request {
	return plugin.Request{Name: name, Bytes: 1 << 20, Mode: corev1.PersistentVolumeFilesystem}
}

// local is the source of a volume at a path.
func local(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// volumesIn gives the names in a root except its marker.
func volumesIn(t *testing.T, root string) []string {
	t.Helper()
	return slices.DeleteFunc(entries(t, root), hostpath.IsMarker)
}

func TestHostPathConforms(t *testing.T) {
	plugintest.Conform(t, func(t *testing.T) plugintest.World {
		p, root := newRoot(t)
		return plugintest.World{
			Plugin:  p,
			Another: root + "#another",
			Request: request(""),
			Unserved: map[string]plugin.Request{
				"a block device": {Mode: corev1.PersistentVolumeBlock},
				"a parameter":    {Mode: corev1.PersistentVolumeFilesystem, Parameters: map[string]string{"path": "/etc"}},
			},
			Foreign: func(string) map[string]corev1.PersistentVolumeSource {
				return map[string]corev1.PersistentVolumeSource{
					"another volume":      local(filepath.Join(root, "b")),
					"the root":            local(root),
					"above the root":      local(filepath.Dir(root)),
					"a way up and back":   local(root + "/b/../a"),
					"a way out":           local(root + "/../a"),
					"a folder inside":     local(filepath.Join(root, "a/b")),
					"the root of the fs":  local("/"),
					"nothing":             local(""),
					"a hostPath":          {HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(root, "a")}},
					"a volume of a disk":  {CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "a"}},
					"a path with a slash": local(root + "/a/"),
				}
			},
			Write: func(t *testing.T, name, file string) {
				must(t, os.WriteFile(filepath.Join(root, name, file), nil, 0o600))
			},
			Files: func(t *testing.T, name string) []string { return entries(t, filepath.Join(root, name)) },
			Names: func(t *testing.T) []string { return volumesIn(t, root) },
		}
	})
}

func TestNamesThatAreNoNamesOfVolumesAreRefused(t *testing.T) {
	p, root := newRoot(t)
	must(t, os.MkdirAll(filepath.Join(root, "a", "b"), 0o700))
	for _, name := range []string{"", ".", "..", "../root", "a/b", "/a", ".deleting-a", "A", "a\x00"} {
		if _, err := p.Creator.Create(t.Context(), request(name)); err == nil {
			t.Errorf("a volume %q was made", name)
		}
		if err := p.Deleter.Delete(t.Context(), plugin.Volume{Name: name}); err == nil {
			t.Errorf("a volume %q was deleted", name)
		}
		if err := p.Recycler.Recycle(t.Context(), plugin.Volume{Name: name}); err == nil {
			t.Errorf("a volume %q was scrubbed", name)
		}
	}
	if got := entries(t, filepath.Join(root, "a")); len(got) != 1 {
		t.Errorf("the root's folder a holds %q, want what it held", got)
	}
}

func TestARootThatCannotBeIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for what, c := range map[string]struct{ root, node string }{
		"no path":       {"", "node-1"},
		"relative":      {"volumes", "node-1"},
		"the whole":     {"/", "node-1"},
		"a way to that": {"/tmp/..", "node-1"},
		"a file":        {file, "node-1"},
		"no node":       {t.TempDir(), ""},
	} {
		if _, err := hostpath.New(c.root, c.node); err == nil {
			t.Errorf("%s: root %q on node %q was taken", what, c.root, c.node)
		}
	}
}

func TestWhoeverAPodRunsAsItsVolumeIsForItToWrite(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	p, root := newRoot(t)
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	info, err := os.Stat(asset.Source.Local.Path)
	must(t, err)
	if info.Mode().Perm() != 0o777 {
		t.Errorf("the volume has mode %o, want 777", info.Mode().Perm())
	}
	if info, err = os.Stat(root); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the root has mode %v (%v), want 700: on the node nobody walks to the volumes", info.Mode(), err)
	}
	// The kubelet's change for an fsGroup stays.
	must(t, os.Chmod(asset.Source.Local.Path, 0o770|os.ModeSetgid))
	_, err = p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	if info, err = os.Stat(asset.Source.Local.Path); err != nil || info.Mode().Perm() != 0o770 || info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("after it was made again the volume has mode %v (%v), want what it had", info.Mode(), err)
	}
	must(t, p.Recycler.Recycle(t.Context(), plugin.Volume{Name: "a", Source: &asset.Source}))
	if info, err = os.Stat(asset.Source.Local.Path); err != nil || info.Mode() != os.ModeDir|0o777 {
		t.Errorf("scrubbed, the volume has mode %v (%v), want that of a new one", info.Mode(), err)
	}
}

func TestDeletionFollowsNoLink(t *testing.T) {
	p, root := newRoot(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	inner := filepath.Join(root, "a", "inner")
	must(t, os.Mkdir(inner, 0o700))
	must(t, os.Symlink(outside, filepath.Join(root, "a", "link")))
	must(t, os.Symlink("../../../..", filepath.Join(inner, "up")))
	must(t, os.Symlink("nowhere", filepath.Join(inner, "dangling")))
	must(t, p.Deleter.Delete(t.Context(), plugin.Volume{Name: "a", Source: &asset.Source}))
	if got := entries(t, outside); len(got) != 1 {
		t.Errorf("what a link pointed at holds %q, want what it held", got)
	}

	// A link is not taken for the volume either.
	must(t, os.Symlink(outside, filepath.Join(root, "a")))
	v := plugin.Volume{Name: "a", Source: &asset.Source}
	if err := p.Deleter.Delete(t.Context(), v); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("deleting a volume that is a link gives %v, want a refusal with what to do", err)
	}
	if _, err := p.Creator.Create(t.Context(), request("a")); err == nil {
		t.Error("a link was taken for the volume that is to be made")
	}
	if got := entries(t, outside); len(got) != 1 {
		t.Errorf("what a link pointed at holds %q, want what it held", got)
	}
}

func TestDeletionStopsAtAMountPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for what, at := range map[string]string{"a folder inside": "a/inner/mnt", "the volume itself": "a", "a file inside": "a/inner/file"} {
		t.Run(what, func(t *testing.T) {
			p, root := newRoot(t)
			asset, err := p.Creator.Create(t.Context(), request("a"))
			must(t, err)
			must(t, os.MkdirAll(filepath.Join(root, "a/inner/mnt"), 0o700))
			must(t, os.WriteFile(filepath.Join(root, "a/inner/file"), nil, 0o600))
			// A bind mount of the same file system has the same device number.
			other := filepath.Join(filepath.Dir(root), "other")
			must(t, os.Mkdir(other, 0o700))
			precious := filepath.Join(other, "precious")
			must(t, os.WriteFile(precious, []byte("data"), 0o600))
			from := other
			if strings.HasSuffix(at, "file") {
				from = precious
			}
			must(t, unix.Mount(from, filepath.Join(root, at), "", unix.MS_BIND, ""))
			unmounted := false
			unmount := func() {
				for _, point := range []string{filepath.Join(root, at), filepath.Join(root, ".deleting-"+at)} {
					if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err == nil {
						unmounted = true
					}
				}
			}
			t.Cleanup(func() {
				if !unmounted {
					unmount()
				}
			})
			v := plugin.Volume{Name: "a", Source: &asset.Source}
			for range 2 {
				if err := p.Deleter.Delete(t.Context(), v); !errors.Is(err, plugin.ErrInUse) || !strings.Contains(err.Error(), "unmount") {
					t.Errorf("deleting gives %v, want ErrInUse and what to do", err)
				}
				if err := p.Recycler.Recycle(t.Context(), v); !errors.Is(err, plugin.ErrInUse) {
					t.Errorf("scrubbing gives %v, want ErrInUse", err)
				}
			}
			if text, err := os.ReadFile(precious); err != nil || string(text) != "data" {
				t.Errorf("what was mounted reads %q, %v", text, err)
			}
			if unmount(); !unmounted {
				t.Fatal("the mount is not where deletion should have left it")
			}
			must(t, p.Deleter.Delete(t.Context(), v))
			if got := volumesIn(t, root); len(got) > 0 {
				t.Errorf("left in the root: %q", got)
			}
			if text, err := os.ReadFile(precious); err != nil || string(text) != "data" {
				t.Errorf("what was mounted reads %q, %v", text, err)
			}
		})
	}
}

func TestATreeDeeperThanFilesCanBeOpenGoes(t *testing.T) {
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	lowered := limit
	lowered.Cur = 128
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lowered))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	p, root := newRoot(t)
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	must(t, os.Mkdir(filepath.Join(root, "a", ".lifted-1"), 0o700)) // a name that deletion wants for itself
	at, err := os.OpenRoot(filepath.Join(root, "a"))
	must(t, err)
	for i := range 500 {
		must(t, at.Mkdir("d", 0o700))
		must(t, at.WriteFile("file"+strconv.Itoa(i), nil, 0o600))
		deeper, err := at.OpenRoot("d")
		must(t, errors.Join(err, at.Close()))
		at = deeper
	}
	must(t, at.Close())
	must(t, p.Deleter.Delete(t.Context(), plugin.Volume{Name: "a", Source: &asset.Source}))
	if got := volumesIn(t, root); len(got) > 0 {
		t.Errorf("left in the root: %q", got)
	}
}

// When a deletion was interrupted, no half-empty volume may be found at its path.
func TestAVolumeThatIsBeingDeletedIsNotAtItsPlace(t *testing.T) {
	longest := validation.DNS1123SubdomainMaxLength
	for _, name := range []string{"a", strings.Repeat("b", unix.NAME_MAX-len(".deleting-")), strings.Repeat("c", unix.NAME_MAX-len(".deleting-")+1), strings.Repeat("d", longest)} {
		t.Run(fmt.Sprintf("whose name has %d bytes", len(name)), func(t *testing.T) {
			p, root := newRoot(t)
			asset, err := p.Creator.Create(t.Context(), request(name))
			must(t, err)
			for i := range 2000 {
				must(t, os.WriteFile(filepath.Join(root, name, strconv.Itoa(i)), nil, 0o600))
			}
			ctx := &countedContext{Context: t.Context(), left: 700}
			v := plugin.Volume{Name: name, Source: &asset.Source}
			if err := p.Deleter.Delete(ctx, v); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v, want the context's error", err)
			}
			if _, err := os.Lstat(asset.Source.Local.Path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the volume is still at its path (%v)", err)
			}
			there := volumesIn(t, root)
			if len(there) != 1 {
				t.Fatalf("in the root: %q, want one folder", there)
			}
			if whose, going := hostpath.VolumeOf(there[0]); whose != name || !going {
				t.Errorf("%s is of volume %q, being deleted: %t; want that of %s", there[0], whose, going, name)
			}
			if left := len(entries(t, filepath.Join(root, there[0]))); left == 0 || left >= 2000 {
				t.Errorf("%d files are left of 2000, want some", left)
			}
			must(t, p.Deleter.Delete(t.Context(), v))
			if got := volumesIn(t, root); len(got) > 0 {
				t.Errorf("left in the root: %q", got)
			}
		})
	}
}

// countedContext ends after a number of queries.
type countedContext struct {
	context.Context
	left int
}

func (c *countedContext) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func TestARootThatIsGoneOrAnotherDeletesNothing(t *testing.T) {
	p, root := newRoot(t)
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	must(t, os.Rename(root, root+"-elsewhere"))
	v := plugin.Volume{Name: "a", Source: &asset.Source}
	if err := p.Deleter.Delete(t.Context(), v); err == nil {
		t.Error("deleted without an error though the root is not there")
	}
	must(t, os.Mkdir(root, 0o700)) // as the directory beneath a disk that is not mounted
	if err := p.Deleter.Delete(t.Context(), v); err == nil {
		t.Error("deleted without an error though the root is another")
	}
	if _, err := p.Creator.Create(t.Context(), request("b")); err == nil {
		t.Error("a volume was made in another root")
	}
	must(t, os.Remove(root))
	must(t, os.Rename(root+"-elsewhere", root))
	must(t, p.Deleter.Delete(t.Context(), v))
}
