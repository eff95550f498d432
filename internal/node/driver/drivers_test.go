package driver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tarn.dev/tarn/internal/node/mounts"
	"tarn.dev/tarn/internal/node/nodetest"
)

func newDrivers(t *testing.T) *Drivers {
	t.Helper()
	dir := nodetest.Tmpfs(t)
	d := New(Config{Mounts: mounts.Kernel{}, Folder: filepath.Join(dir, "drivers"), Registry: filepath.Join(dir, "registry"), NodeName: "n", Version: "v"})
	t.Cleanup(d.Close)
	return d
}

func yes() (bool, error) { return true, nil }

func no() (bool, error) { return false, nil }

// leftOf names the files of drivers in the directories.
func leftOf(t *testing.T, d *Drivers) (left []string) {
	t.Helper()
	for _, dir := range []string{d.Folder, d.Registry} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	return left
}

// An agent that starts serves all existing drivers, and may learn meanwhile that one was removed.
func TestADriverThatIsWantedNoMoreWhenItIsServedLeavesNothing(t *testing.T) {
	d := newDrivers(t)
	ended := make(chan error, 1)
	if err := d.Settle(t.Context(), "a", func() (bool, error) {
		go func() { ended <- d.Settle(t.Context(), "a", no) }()
		select {
		case err := <-ended:
			t.Fatalf("somebody else was at the driver meanwhile: %v", err)
		case <-time.After(50 * time.Millisecond): // nothing shows that it waits
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	nodetest.Must(t, <-ended)
	if left := leftOf(t, d); d.Serving("a") || len(left) > 0 {
		t.Errorf("serving: %t, left: %v", d.Serving("a"), left)
	}
}

func TestADriverThatIsEndedAsSoonAsItIsServedLeavesNothing(t *testing.T) {
	d := newDrivers(t)
	for range 200 {
		nodetest.Must(t, errors.Join(d.Settle(t.Context(), "a", yes), d.Settle(t.Context(), "a", no)))
		if left := leftOf(t, d); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
	}
}

func TestWhoIsAtADriverKeepsNobodyFromAnotherOne(t *testing.T) {
	d := newDrivers(t)
	nodetest.Must(t, d.Settle(t.Context(), "a", func() (bool, error) { return true, d.Settle(t.Context(), "b", yes) }))
	if !d.Serving("a") || !d.Serving("b") {
		t.Errorf("serving a: %t, b: %t", d.Serving("a"), d.Serving("b"))
	}
}

// another serves the registration socket of a driver from another process, as node-driver-registrar
// does: it creates the socket again.
func another(t *testing.T, d *Drivers, name string) {
	t.Helper()
	path := d.paths(name).registration
	nodetest.Must(t, os.MkdirAll(d.Registry, 0o750))
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	nodetest.Must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
}

func TestADriverEndsThoughAnotherHasItsNameAndThatOneStays(t *testing.T) {
	for name, end := range map[string]func(*Drivers) error{
		"it was there before": func(d *Drivers) error {
			another(t, d, "a")
			if err := d.Settle(t.Context(), "a", yes); !errors.Is(err, ErrServed) {
				return errors.Join(errors.New("want that the other one is named"), err)
			}
			return d.Settle(t.Context(), "a", no)
		},
		"it came afterwards": func(d *Drivers) error {
			err := d.Settle(t.Context(), "a", yes)
			another(t, d, "a")
			return errors.Join(err, d.Settle(t.Context(), "a", no))
		},
		"it came between two runs": func(d *Drivers) error {
			err := d.Settle(t.Context(), "a", yes)
			d.Close()
			another(t, d, "a")
			return errors.Join(err, New(d.Config).Clean(func(string) bool { return false }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDrivers(t)
			if err := end(d); err != nil {
				t.Error(err)
			}
			theirs := d.paths("a").registration
			if left := leftOf(t, d); d.Serving("a") || len(left) != 1 || left[0] != theirs {
				t.Errorf("serving: %t, left: %v, want the other one's socket", d.Serving("a"), left)
			}
			conn, err := net.Dial("unix", theirs)
			if err != nil {
				t.Fatalf("the other one: %v", err)
			}
			_ = conn.Close()
		})
	}
}

func TestWhatAnEarlierRunStillServesIsLeftToIt(t *testing.T) {
	earlier := newDrivers(t)
	nodetest.Must(t, earlier.Settle(t.Context(), "a", yes))
	before := leftOf(t, earlier)
	if err := New(earlier.Config).Clean(func(string) bool { return false }); !errors.Is(err, ErrServed) {
		t.Errorf("got %v, want that it is served", err)
	}
	if left := leftOf(t, earlier); len(left) != len(before) {
		t.Errorf("left: %v, want %v", left, before)
	}
}
