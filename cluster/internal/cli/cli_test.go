package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
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
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"x: Failed (etcd keeps ending)", "42", "1m30s", "exit status 1", "no packet filter"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
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
