package driver

import (
	"errors"
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

// leftOf names what there is of drivers in the folders.
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

// An agent that begins serves all drivers there are while it hears that one is gone.
func TestADriverThatIsWantedNoMoreWhenItIsServedLeavesNothing(t *testing.T) {
	d := newDrivers(t)
	ended := make(chan error, 1)
	if err := d.Settle(t.Context(), "a", func() (bool, error) {
		go func() { ended <- d.Settle(t.Context(), "a", no) }()
		select {
		case err := <-ended:
			t.Fatalf("somebody else was at the driver meanwhile: %v", err)
		case <-time.After(50 * time.Millisecond): // nothing tells that he waits
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if left := leftOf(t, d); d.Serving("a") || len(left) > 0 {
		t.Errorf("serving: %t, left: %v", d.Serving("a"), left)
	}
}

func TestADriverThatIsEndedAsSoonAsItIsServedLeavesNothing(t *testing.T) {
	d := newDrivers(t)
	for range 200 {
		if err := errors.Join(d.Settle(t.Context(), "a", yes), d.Settle(t.Context(), "a", no)); err != nil {
			t.Fatal(err)
		}
		if left := leftOf(t, d); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
	}
}

func TestWhoIsAtADriverKeepsNobodyFromAnotherOne(t *testing.T) {
	d := newDrivers(t)
	if err := d.Settle(t.Context(), "a", func() (bool, error) { return true, d.Settle(t.Context(), "b", yes) }); err != nil {
		t.Fatal(err)
	}
	if !d.Serving("a") || !d.Serving("b") {
		t.Errorf("serving a: %t, b: %t", d.Serving("a"), d.Serving("b"))
	}
}
