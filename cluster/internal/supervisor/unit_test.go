package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

func TestPausesBetweenRestartsDoubleUpToALimit(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: firstBackoff, 1: 2 * firstBackoff, 3: 8 * firstBackoff, 100: lastBackoff} {
		if got := backoff(failures); got != want {
			t.Errorf("pause after %d failures: %s, want %s", failures, got, want)
		}
	}
}

var reaper = sync.OnceValue(proc.NewReaper)

// supervise runs a shell script as a component.
func supervise(t *testing.T, script string) *unit {
	t.Helper()
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	launch := &launcher{layout: l, reaper: reaper(), env: []string{"PATH=/usr/bin:/bin"}}
	u := &unit{
		component: component.Component{Name: "c", Program: "/bin/sh", Args: []string{"-c", script}},
		start:     launch.launch, hostPID: func(*os.File) int { return 7 }, failed: func(string, int, string) {},
		stopping: make(chan struct{}), ended: make(chan struct{}), hurry: make(chan struct{}),
	}
	go u.run()
	t.Cleanup(func() { u.stop(time.Second) }) //nolint:errcheck
	return u
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestAComponentThatDiesIsStartedAgainAndItsStatusSaysSo(t *testing.T) {
	u := supervise(t, "exit 5")
	eventually(t, "two restarts", func() bool { return u.status().Restarts >= 2 })
	if got := u.status().LastExit; got != "exit status 5" {
		t.Errorf("last exit %q", got)
	}
}

func TestARestartIsNotHeldUpByThePause(t *testing.T) {
	u := supervise(t, "sleep 1000")
	eventually(t, "it runs", func() bool { return u.status().State == control.Running })
	if err := u.restart(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs again", func() bool { s := u.status(); return s.Restarts == 1 && s.State == control.Running })
	if got := u.status().LastExit; got != "killed by killed" {
		t.Errorf("last exit %q", got)
	}
}

func TestRequestedRestartsAreNoFailuresHoweverMany(t *testing.T) {
	u := supervise(t, "sleep 1000")
	began := time.Now()
	const times = 8 // crashes in a row would have waited 32 s by then
	for n := range times {
		eventually(t, "it runs", func() bool { s := u.status(); return s.Restarts == n && s.State == control.Running })
		if err := u.restart(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it runs again", func() bool { s := u.status(); return s.Restarts == times && s.State == control.Running })
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("%d restarts took %s", times, took)
	}
}

func TestAComponentThatWillNotEndIsKilledAfterTheGrace(t *testing.T) {
	trapped := filepath.Join(t.TempDir(), "trapped")
	u := supervise(t, `trap "" TERM; touch `+trapped+`; while :; do sleep 0.05; done`)
	eventually(t, "it will not end", func() bool { _, err := os.Stat(trapped); return err == nil })
	began := time.Now()
	if err := u.stop(300 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if u.status().State == control.Running {
		t.Error("it still runs")
	}
}

func TestFollowersSeeEveryStepOnceAndThenTheEnd(t *testing.T) {
	p := newProgress(time.Now())
	p.step("one")
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.follow(context.Background(), func(s control.Step) { seen = append(seen, s.Text) })
	}()
	p.step("two")
	p.fail(errors.New("three"))
	<-done
	if got := strings.Join(seen, " "); got != "one two three" {
		t.Errorf("saw %q", got)
	}
	p.note("four")
	if stage, text := p.now(); stage != control.Failed || text != "three" {
		t.Errorf("now %s, %s", stage, text)
	}
}

func TestANodeRecordedAsReadyBeforeACrashDoesNotCount(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 999, time.UTC)
	node := func(status corev1.ConditionStatus, beat time.Time, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{
			Spec: corev1.NodeSpec{Taints: taints},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.NewTime(beat)}}},
		}
	}
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	cut := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}
	for what, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"ready, and still out of service": {node(corev1.ConditionTrue, began.Add(time.Second), cut), true},
		"ready since":                     {node(corev1.ConditionTrue, began.Truncate(time.Second)), true},
		"ready from before":               {node(corev1.ConditionTrue, began.Add(-2*time.Second)), false},
		"not ready":                       {node(corev1.ConditionFalse, began.Add(time.Second)), false},
		"ready, and still tainted":        {node(corev1.ConditionTrue, began.Add(time.Second), notReady), false},
		"no condition at all":             {&corev1.Node{}, false},
	} {
		if got := takesPods(c.node, began); got != c.want {
			t.Errorf("%s: takesPods is %t", what, got)
		}
	}
}

func TestTheLastLinesOfALogAreWhatAComponentSaidLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 9000)+"\nfirst\nlast words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{1: "last words", 2: "first\nlast words"} {
		if got := lastLines(path, n); got != want {
			t.Errorf("last %d lines: %q, want %q", n, got, want)
		}
	}
	if err := os.WriteFile(path+".empty", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, silent := range []string{path + ".none", path + ".empty"} {
		if got := lastLines(silent, 1); got != "it wrote no log" {
			t.Errorf("%s: got %q", silent, got)
		}
	}
}
