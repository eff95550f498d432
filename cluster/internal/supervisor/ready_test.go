package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/layout"
)

func TestAComponentThatNeverGetsReadyIsToldByItsLastAnswerAndItsLog(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{config: Config{Layout: l}, units: map[string]*unit{"c": supervise(t, "exec sleep 60")}}
	log := l.Log("c")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("starting\nwaiting for the moon\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	asked := 0
	err = s.until(t.Context(), 200*time.Millisecond, "c", func(ctx context.Context) error {
		if asked++; asked == 1 {
			return errors.New("503 [-]moon failed")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	for _, want := range []string{"c is not ready after 200ms", "503 [-]moon failed", "waiting for the moon", "tarn-cluster logs c --name x"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// TestAStartEndsWhenAComponentKeepsEnding makes etcd fail. The start itself waits for the API
// server, not for etcd.
func TestAStartEndsWhenAComponentKeepsEnding(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	for name, script := range map[string]string{"etcd": "echo one; echo two; echo three; echo no space left; exit 3", "kube": "exec sleep 60"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	state := layout.State{Name: "x", Data: l.Data, Options: layout.Options{ControlPlaneOnly: true}}
	s := &Supervisor{
		config: Config{Layout: l, State: state}, plan: component.NewPlan(l, state, component.Machine{Programs: programs}),
		launcher: &launcher{layout: l, reaper: reaper(), env: []string{"PATH=/usr/bin:/bin"}},
		progress: newProgress(time.Now()), stop: make(chan struct{}), units: map[string]*unit{},
	}
	t.Cleanup(func() { s.stopAll([]string{component.APIServer, component.Etcd}) }) //nolint:errcheck
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const end = "The end of its log:\ntwo\nthree\nno space left"
	want := "etcd keeps exiting (exit status 3): see `tarn-cluster logs etcd --name x`. " + end
	if err := s.bringUp(ctx); err == nil || err.Error() != want {
		t.Errorf("the start ended with\n%v\nwant\n%s", err, want)
	}
	want = "etcd has exited 2 times (exit status 3) and is restarted. " + end
	if _, got := s.progress.now(); got != want {
		t.Errorf("told\n%s\nwant\n%s", got, want)
	}
	ctx, s.giveUp = context.WithCancelCause(t.Context())
	if s.failed(component.Proxy, 5, "exit status 1"); ctx.Err() != nil {
		t.Error("a start ends for kube-proxy, which pods do without")
	}
}
