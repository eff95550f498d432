package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tarn.dev/tarn/internal/node/hangguard"
	"tarn.dev/tarn/internal/node/nodetest"
)

// short is the timeout for servers in tests in which they hang. long is more than anything takes
// that does not wait for a server.
const (
	short = 200 * time.Millisecond
	long  = 30 * time.Second
)

// within returns the result of a call. If the call takes too long, it ends the server and the test.
func within(t *testing.T, server *nodetest.Server, call func() error) error {
	t.Helper()
	answer := make(chan error, 1)
	go func() { answer <- call() }()
	select {
	case err := <-answer:
		return err
	case <-time.After(long):
		server.End()
		t.Fatalf("a server that hangs keeps who unmounts: %v in the end", <-answer)
		return nil
	}
}

func TestAServerThatHangsKeepsNobodyWhoUnmountsBelowIt(t *testing.T) {
	dir := nodetest.Tmpfs(t)
	volume := mkdir(t, dir, "volume")
	server, err := nodetest.Serve(volume)
	nodetest.Must(t, err)
	below := filepath.Join(volume, nodetest.Below)
	nodetest.MountTmpfs(t, below)
	p := NewPatient(short)
	server.Hang()
	for range 2 {
		if err := within(t, server, func() error { return UnmountTree(p, volume, nil) }); !errors.Is(err, hangguard.ErrNoAnswer) {
			t.Errorf("got %v, want that there is no answer", err)
		}
	}
	if left := mountsUnder(t, volume); len(left) != 2 {
		t.Errorf("mounted are %v, want both", left)
	}
	var detached []string
	err = within(t, server, func() error {
		return UnmountTree(p, volume, func(point string, _ error) { detached = append(detached, point) })
	})
	if err != nil || len(detached) != 1 || detached[0] != volume {
		t.Errorf("detached is %v (%v), want the volume with all below it", detached, err)
	}
	if left := mountsUnder(t, volume); len(left) != 0 {
		t.Errorf("mounted are %v, want none", left)
	}
	// An unmount that hung must not unmount later what is mounted there by then.
	nodetest.MountTmpfs(t, below)
	server.GoOn()
	again := func() error {
		_, err := hangguard.Ask(&p.asks, below, long, func() (int, error) { return 0, nil }, func(int, error) {})
		return err
	}
	for end := time.Now().Add(long); again() != nil && time.Now().Before(end); {
	}
	if err := again(); err != nil {
		t.Error(err)
	}
	if left := mountsUnder(t, volume); len(left) != 1 {
		t.Errorf("mounted are %v, want what is new", left)
	}
	server.End()
}

// If the storage is removed before the kernel has ended the file system, unwritten data is lost.
func TestAMountTheKernelIsStillEndingIsStillThere(t *testing.T) {
	device := fmt.Sprint("/dev/loop", unix.Minor(nodetest.Loop(t, 1<<20)))
	dir := nodetest.Tmpfs(t)
	volume := mkdir(t, dir, "volume")
	server, err := nodetest.ServeBlock(device, volume)
	nodetest.Must(t, err)
	defer server.End()
	p := NewPatient(short)
	if _, err := os.Stat(volume); err != nil { // it has begun, so it sees the end
		t.Fatal(err)
	}
	server.Hang()
	for _, detach := range []func(string, error){nil, nil, func(point string, _ error) { t.Errorf("%s was detached", point) }} {
		if err := within(t, server, func() error { return UnmountTree(p, volume, detach) }); !errors.Is(err, hangguard.ErrNoAnswer) {
			t.Errorf("got %v, want that there is no answer", err)
		}
		table, err := p.List()
		if layers := At(table, volume); err != nil || len(layers) != 1 || layers[0].Type != "fuseblk" {
			t.Errorf("there are %v (%v), want the volume", layers, err)
		}
	}
	server.GoOn()
	for end := time.Now().Add(long); UnmountTree(p, volume, nil) != nil && time.Now().Before(end); {
	}
	if err := UnmountTree(p, volume, nil); err != nil {
		t.Error(err)
	}
	if table, err := p.List(); err != nil || len(Under(table, volume)) != 0 {
		t.Errorf("there are %v (%v), want none", Under(table, volume), err)
	}
}
