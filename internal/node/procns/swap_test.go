package procns

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

// swapped is a container with a volume below a directory that it may rename. Elsewhere it has a
// mount under the same last name that it must not lose, like "sys" in /proc, which protects the
// machine's settings.
type swapped struct {
	container
	dir, folder, link, data, guard string
}

func startSwapped(t *testing.T) swapped {
	t.Helper()
	dir := nodetest.Tmpfs(t)
	s := swapped{
		dir: dir, folder: filepath.Join(dir, "folder"), link: filepath.Join(dir, "link"),
		data: filepath.Join(dir, "folder", "sys"), guard: filepath.Join(dir, "proc", "sys"),
	}
	volume(t, s.data, "old")
	volume(t, s.guard, "guard")
	nodetest.Must(t, os.Symlink("proc", s.link))
	s.container = start(t, s.guard, 0)
	return s
}

// swap exchanges the directory above the volume and the link to the other mount.
func (s swapped) swap(t *testing.T) {
	t.Helper()
	if err := unix.Renameat2(unix.AT_FDCWD, s.folder, unix.AT_FDCWD, s.link, unix.RENAME_EXCHANGE); err != nil {
		t.Error(err)
	}
}

// has gives the mounts that the container sees at a point, older ones first.
func (s swapped) has(t *testing.T, point string) []mounts.Mount {
	t.Helper()
	table, err := mounts.ListOf(s.Process)
	nodetest.Must(t, err)
	return mounts.At(table, point)
}

func (s swapped) wantGuard(t *testing.T) {
	t.Helper()
	if got := s.ask(); got != "guard <nil>" {
		t.Fatalf("the container finds %q at its other mount, want what was there", got)
	}
}

func TestNoOtherMountIsExchangedWhereThePathHasBeenLedAway(t *testing.T) {
	for what, lead := range map[string]func(*testing.T, swapped){
		"by a link": func(t *testing.T, s swapped) { s.swap(t) },
		"by a folder": func(t *testing.T, s swapped) {
			err := unix.Renameat2(unix.AT_FDCWD, s.folder, unix.AT_FDCWD, filepath.Join(s.dir, "proc"), unix.RENAME_EXCHANGE)
			nodetest.Must(t, err)
		},
		"to nowhere": func(t *testing.T, s swapped) {
			nodetest.Must(t, os.Rename(s.folder, s.folder+"-away"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := startSwapped(t)
			again := filepath.Join(s.dir, "again")
			volume(t, again, "new")
			old, guard := s.has(t, s.data), s.has(t, s.guard)
			if len(old) != 1 || len(guard) != 1 {
				t.Fatalf("the container has %v and %v", old, guard)
			}
			lead(t, s)
			err := s.Replace(&hangguard.Asker{}, long, old[0], open(t, again))
			var moved *mounts.MovedError
			if !errors.As(err, &moved) {
				t.Errorf("got %v, want that it has moved", err)
			}
			table, err := mounts.ListOf(s.Process)
			nodetest.Must(t, err)
			for _, want := range []mounts.Mount{old[0], guard[0]} {
				if now, there := mounts.ByID(table, want.ID); !there || len(mountsAt(table, now.Point)) != 1 {
					t.Errorf("the container has %v, want mount %d as it was", table, want.ID)
				}
			}
		})
	}
}

func mountsAt(table []mounts.Mount, point string) (found []mounts.Mount) {
	for _, m := range table {
		if m.Point == point {
			found = append(found, m)
		}
	}
	return found
}

func TestNoOtherMountIsTakenAwayHoweverFastThePathIsLedAway(t *testing.T) {
	s := startSwapped(t)
	sources := []*os.File{}
	for _, name := range []string{"one", "two"} {
		again := filepath.Join(s.dir, name)
		volume(t, again, name)
		sources = append(sources, open(t, again))
	}
	exchanged := 0
	const races = 300
	for i := range races {
		layers := s.has(t, s.data)
		if len(layers) == 0 {
			t.Fatal("the container has no volume any more")
		}
		stop := make(chan struct{})
		var spin sync.WaitGroup
		spin.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.swap(t)
					s.swap(t)
				}
			}
		})
		err := s.Replace(&hangguard.Asker{}, long, layers[len(layers)-1], sources[i%len(sources)])
		close(stop)
		spin.Wait()
		if err == nil {
			exchanged++
		}
		s.wantGuard(t)
	}
	if exchanged == 0 {
		t.Errorf("the volume was exchanged in none of %d races", races)
	}
}
