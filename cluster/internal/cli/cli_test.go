package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/layout"
)

func TestTheStatusTableShowsWhatDiedAndWhatIsAbsent(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var out strings.Builder
	err := table(&out, control.Status{
		Name: "x", Stage: control.Failed, Message: "etcd keeps ending", PID: 7,
		Components: []control.Component{
			{Name: "etcd", State: control.Running, PID: 42, Started: now.Add(-90 * time.Second), Restarts: 3, LastExit: "exit status 1"},
			{Name: "kube-proxy", State: control.Absent, Note: "no packet filter"},
		},
		Nodes: []control.Node{{
			Name: "x-2", IP: "10.1.2.3", Zone: "b", State: control.Ready, Frozen: true, Isolated: true,
			Components: []control.Component{{Name: "kubelet", State: control.Running, PID: 77}},
		}},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"node x-2 at 10.1.2.3, zone b: Ready, frozen, isolated", "77", "x: Failed (etcd keeps ending)", "42", "1m30s", "exit status 1", "no packet filter"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestTheStatusSaysWhatEndedOfAClusterThatIsReady(t *testing.T) {
	for _, c := range []struct{ state, want string }{
		{control.Running, "cluster x: Ready\n"},
		{control.Waiting, "cluster x: Ready, but for kubelet: see `tarn-cluster logs kubelet --name x`\n"},
	} {
		var out strings.Builder
		components := []control.Component{{Name: "etcd", State: control.Running}, {Name: "kubelet", State: c.state}}
		if err := table(&out, control.Status{Name: "x", Stage: control.Ready, Components: components}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("with a component %s: %s", c.state, out.String())
		}
	}
}

func TestAMissingTarnProgramIsSaidWithTheRemedy(t *testing.T) {
	dir := t.TempDir()
	if _, err := tarnBinary("", dir); err == nil || !strings.Contains(err.Error(), "--stock") || !strings.Contains(err.Error(), dir) {
		t.Errorf("no program beside: %v", err)
	}
	program := filepath.Join(dir, "tarn")
	if err := os.WriteFile(program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tarnBinary("", dir); err == nil {
		t.Error("a file that cannot be run passed for a program")
	}
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := tarnBinary("", dir); err != nil || got != program {
		t.Errorf("found %q, %v", got, err)
	}
}

// someCluster is a cluster that is not running, with its data in a directory of the test.
func someCluster(t *testing.T) (*up, layout.Layout) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test clears away cgroups and the like, and so needs root: run it with sudo")
	}
	l, err := layout.New("nobody-has-this-name", filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	return &up{out: io.Discard}, l
}

func TestAFirstStartThatWasKilledBeforeItsStateWasWrittenIsNoObstacle(t *testing.T) {
	u, l := someCluster(t)
	if err := os.WriteFile(l.StateFile()+".new", []byte(`{"na`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := u.recover(l); err != nil {
		t.Errorf("the next start: %v", err)
	}
	if err := sweep(l, layout.State{}, false, false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(l.Data); !os.IsNotExist(err) {
		t.Errorf("`down` leaves the data folder: %v", err)
	}
}

func TestADataFolderOfSomebodyElseIsLeftAlone(t *testing.T) {
	u, l := someCluster(t)
	precious := filepath.Join(l.Data, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := u.recover(l); err == nil {
		t.Error("a cluster is started in a folder that holds other files")
	}
	if err := sweep(l, layout.State{}, false, false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("`down` has deleted a file that is not the cluster's: %v", err)
	}
}

func TestARemovalThatWasKilledIsFinishedByTheNextStart(t *testing.T) {
	u, l := someCluster(t)
	if err := layout.WriteState(l.StateFile(), layout.State{Name: l.Name, Data: l.Data, Block: 3}); err != nil {
		t.Fatal(err)
	}
	// Something in use below the data, such as a user's mount, stops the removal half-way.
	point := filepath.Join(l.Data, "z-busy")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tarn-test", point, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })
	busy, err := os.Create(filepath.Join(point, "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Close() })
	if err := os.Mkdir(filepath.Join(l.Data, "etcd"), 0o755); err != nil {
		t.Fatal(err)
	}
	state, err := layout.ReadState(l.StateFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := sweep(l, state, true, false); err == nil {
		t.Fatal("a busy mount was removed")
	}
	if _, err := u.recover(l); err == nil {
		t.Fatal("the next start takes what a removal has left for the cluster's data")
	}
	_ = busy.Close()
	earlier, err := u.recover(l)
	if err != nil || earlier.Block != 0 || earlier.Name != "" {
		t.Errorf("the next start begins with %+v, %v; want a new cluster", earlier, err)
	}
	if _, err := os.Stat(l.Data); !os.IsNotExist(err) {
		t.Errorf("of the removed cluster there is left: %v", err)
	}
}

func TestEveryComponentTakesArguments(t *testing.T) {
	up, _, err := New().Find([]string{"up"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range component.Names() {
		if up.Flags().Lookup(name+"-arg") == nil {
			t.Errorf("up has no flag --%s-arg", name)
		}
	}
}

func TestAMisspelledCommandIsAnError(t *testing.T) {
	for _, args := range [][]string{{"stats"}, {"node", "fill"}, {"image", "pull", "busybox"}} {
		cmd := New()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("tarn-cluster %s: %v, want an error", strings.Join(args, " "), err)
		}
	}
}
