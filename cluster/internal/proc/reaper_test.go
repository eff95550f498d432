package proc

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// reaper is shared by all tests, because it waits for every child of the program.
var reaper = sync.OnceValue(NewReaper)

func start(t *testing.T, script string) (*Process, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := reaper().Start(Spec{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"A=b"}, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	return p, path
}

func ended(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatalf("process %d has not ended", p.PID)
	}
}

func TestEndsOfManyShortProcessesAreAllNoticed(t *testing.T) {
	var processes []*Process
	for range 50 {
		p, _ := start(t, "exit 3")
		processes = append(processes, p)
	}
	for _, p := range processes {
		ended(t, p)
		if p.Exit() != "exit status 3" || p.Succeeded() {
			t.Errorf("process %d: %s", p.PID, p.Exit())
		}
	}
}

func TestAProcessGetsItsEnvironmentAndNoInput(t *testing.T) {
	p, out := start(t, "echo $A; cat; echo end")
	ended(t, p)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != "b\nend\n" || !p.Succeeded() {
		t.Errorf("it printed %q and ended with %s", text, p.Exit())
	}
}

func TestSignalsReachTheProcessAndNobodyAfterItsEnd(t *testing.T) {
	p, _ := start(t, "exec sleep 1000")
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	if p.Exit() != "killed by killed" {
		t.Errorf("it ended with %s", p.Exit())
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Errorf("signalling an ended process: %v", err)
	}
}

func TestAProgramThatIsNotThereIsAnError(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := reaper().Start(Spec{Path: "/no/such/program", Out: out}); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("starting a missing program: %v", err)
	}
}
