package hostpath_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/hostpath"
)

const marker = ".tarn-root"

// id is the ID in a place.
func id(place string) string { return place[strings.LastIndex(place, "#")+1:] }

func started(t *testing.T, root string) plugin.Plugin {
	t.Helper()
	p, err := hostpath.New(root, "node-1")
	must(t, err)
	return p
}

// refused requires an error that says what to do about a different root.
func refused(t *testing.T, what, root, place string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s is no error though the disk is not mounted", what)
		return
	}
	for _, part := range []string{"root " + root + " is not the one", "mount what belongs there", "restart the controller", "write " + id(place) + " into " + filepath.Join(root, marker)} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want it to say %q", what, err, part)
		}
	}
}

func TestAMachineThatWasRebootedWithoutItsDiskDeletesNothing(t *testing.T) {
	p, root := newRoot(t)
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	v := plugin.Volume{Name: "a", Source: &asset.Source, Place: p.Place}
	file := filepath.Join(root, "a", "data")
	must(t, os.WriteFile(file, []byte("data"), 0o600))
	disk := root + "-disk"
	for _, beneath := range []string{"an empty folder", "no folder", "the one of the reboot before"} {
		switch beneath {
		case "an empty folder":
			must(t, os.Rename(root, disk))
			must(t, os.Mkdir(root, 0o700))
		case "no folder":
			must(t, os.RemoveAll(root))
		}
		p := started(t, root)
		refused(t, beneath+": deletion", root, v.Place, p.Deleter.Delete(t.Context(), v))
		refused(t, beneath+": undoing", root, v.Place, p.Deleter.Delete(t.Context(), plugin.Volume{Name: "a", Place: v.Place}))
		refused(t, beneath+": scrubbing", root, v.Place, p.Recycler.Recycle(t.Context(), v))
		refused(t, beneath+": creation beside it", root, v.Place, p.Creator.Misses(v))
		if got := volumesIn(t, root); len(got) > 0 {
			t.Errorf("%s: in the root: %q, want nothing made", beneath, got)
		}
		// A volume from an earlier release has no place.
		must(t, p.Deleter.Delete(t.Context(), plugin.Volume{Name: "a", Source: &asset.Source}))
	}
	must(t, os.RemoveAll(root))
	must(t, os.Rename(disk, root))
	if text, err := os.ReadFile(file); err != nil || string(text) != "data" {
		t.Errorf("mounted again, the volume has %q (%v)", text, err)
	}
	p = started(t, root)
	must(t, p.Creator.Misses(v))
	must(t, p.Deleter.Delete(t.Context(), v))
}

// The error tells the administrator to write the ID of a lost disk onto the new one. The new disk
// then stands for the lost one, and volumes on the lost one count as deleted.
func TestADiskThatIsGoneForGoodIsReplacedByItsID(t *testing.T) {
	p, root := newRoot(t)
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	v := plugin.Volume{Name: "a", Source: &asset.Source, Place: p.Place}
	must(t, os.RemoveAll(root))
	started(t, root)
	must(t, os.WriteFile(filepath.Join(root, marker), []byte(id(v.Place)+"\n\n"), 0o600))
	p = started(t, root)
	if p.Place != v.Place {
		t.Fatalf("the root has id %s, want %s", p.Place, v.Place)
	}
	must(t, p.Deleter.Delete(t.Context(), v))
}

func TestAllThatStartAtOnceFindOneMarker(t *testing.T) {
	for range 20 {
		root := filepath.Join(t.TempDir(), "root")
		places := make([]string, 8)
		var all sync.WaitGroup
		for i := range places {
			all.Go(func() {
				p, err := hostpath.New(root, "node-1")
				if err != nil {
					t.Error(err)
				}
				places[i] = p.Place
			})
		}
		all.Wait()
		for _, place := range places {
			if place == "" || place != places[0] {
				t.Fatalf("the places are %q, want one", places)
			}
		}
		if got := entries(t, root); len(got) != 1 || got[0] != marker {
			t.Errorf("in the root: %q, want the marker alone", got)
		}
	}
}

func TestAMarkerIsForRootAloneAndEachRootsOwn(t *testing.T) {
	one, root := newRoot(t)
	other, _ := newRoot(t)
	if one.Place == other.Place {
		t.Errorf("two roots have id %q", one.Place)
	}
	if again := started(t, root); again.Place != one.Place {
		t.Errorf("the root has id %q, and had %q", again.Place, one.Place)
	}
	if info, err := os.Lstat(filepath.Join(root, marker)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the marker has mode %v (%v), want 600", info.Mode(), err)
	}
}

// A full disk has no room for a marker, and a deletion may make room.
func TestARootThatTakesNoMarkerIsServedAsBefore(t *testing.T) {
	root := t.TempDir()
	must(t, unix.Mount("tmpfs", root, "tmpfs", 0, "nr_inodes=4"))
	t.Cleanup(func() { must(t, unix.Unmount(root, 0)) })
	must(t, os.Mkdir(filepath.Join(root, "a"), 0o700))
	must(t, os.Mkdir(filepath.Join(root, "b"), 0o700))
	must(t, os.Mkdir(filepath.Join(root, "c"), 0o700))
	p := started(t, root)
	if p.Place != "" {
		t.Fatalf("a root without room has place %q", p.Place)
	}
	refused(t, "deletion of what lies on another disk", root, root+"#0123", p.Deleter.Delete(t.Context(), plugin.Volume{Name: "a", Place: root + "#0123"}))
	must(t, p.Deleter.Delete(t.Context(), plugin.Volume{Name: "a"}))
	must(t, p.Deleter.Delete(t.Context(), plugin.Volume{Name: "b"}))
	if p := started(t, root); p.Place == "" {
		t.Error("the root takes no marker though there is room now")
	}
}

func TestWhatWasBegunInAnotherRootIsNotMissed(t *testing.T) {
	p, _ := newRoot(t)
	before, _ := newRoot(t)
	must(t, p.Creator.Misses(plugin.Volume{Name: "a", Place: before.Place}))
}

// The rest of a start that was killed before its marker was complete does not count.
func TestHalfAMarkerIsNone(t *testing.T) {
	root := t.TempDir()
	half := filepath.Join(root, marker+".0123456789abcdef0123456789abcdef")
	must(t, os.WriteFile(half, []byte("0123"), 0o600))
	if p := started(t, root); len(id(p.Place)) != 32 {
		t.Errorf("the root has id %q", p.Place)
	}
	if got := volumesIn(t, root); len(got) > 0 {
		t.Errorf("%q count as volumes", got)
	}
}

func TestAMarkerThatIsNoneIsRefusedWithWhatToDo(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte(strings.Repeat("ab", 16)), 0o600))
	text := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for what, put := range map[string]func(path string) error{
		"empty":               text(""),
		"cut off":             text(strings.Repeat("ab", 15)),
		"too long":            text(strings.Repeat("ab", 17)),
		"without end":         text(strings.Repeat("ab", 1<<20)),
		"no digits":           text(strings.Repeat("xy", 16)),
		"in capitals":         text(strings.Repeat("AB", 16)),
		"a link":              func(path string) error { return os.Symlink(outside, path) },
		"a link that dangles": func(path string) error { return os.Symlink("nowhere", path) },
		"a folder":            func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":              func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, marker)
			must(t, put(path))
			_, err := hostpath.New(root, "node-1")
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "tarn.dev/place") || !strings.Contains(err.Error(), "remove") || len(err.Error()) > 600 {
				t.Errorf("got %.700v, want what to do about %s", err, path)
			}
			if got := entries(t, root); len(got) != 1 {
				t.Errorf("in the root: %q, want what was there", got)
			}
		})
	}
}

// Two disks may have the same number, one after the other.
func TestAMarkerThatChangesUnderTheProcessStopsIt(t *testing.T) {
	p, root := newRoot(t)
	asset, err := p.Creator.Create(t.Context(), request("a"))
	must(t, err)
	v := plugin.Volume{Name: "a", Source: &asset.Source, Place: p.Place}
	path := filepath.Join(root, marker)
	for what, change := range map[string]func() error{
		"another": func() error { return os.WriteFile(path, []byte(strings.Repeat("ab", 16)), 0o600) },
		"gone":    func() error { return os.Remove(path) },
		"damaged": func() error { return os.WriteFile(path, nil, 0o600) },
	} {
		must(t, change())
		_, created := p.Creator.Create(t.Context(), request("b"))
		for call, err := range map[string]error{"creation": created, "deletion": p.Deleter.Delete(t.Context(), v), "scrubbing": p.Recycler.Recycle(t.Context(), v)} {
			if err == nil || !strings.Contains(err.Error(), path) || errors.Is(err, plugin.ErrInUse) {
				t.Errorf("the marker is %s, and %s gives %v", what, call, err)
			}
		}
	}
	must(t, os.WriteFile(path, []byte(id(p.Place)), 0o600))
	if got := volumesIn(t, root); len(got) != 1 || got[0] != "a" {
		t.Errorf("in the root: %q, want what was there", got)
	}
	must(t, p.Deleter.Delete(t.Context(), v))
}
