package supervisor

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

func TestARequestThatWaitedForARemovalFindsNoNode(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{config: Config{Layout: l}}
	f := s.newFurther(layout.Node{Name: "x-2", Number: 2})
	s.nodes = []*further{f}
	if err := s.hold(f); err != nil {
		t.Fatal(err)
	}
	f.work.Unlock()
	s.nodes = []*further{s.newFurther(f.node)} // removed, and added again
	for range 2 {                              // the first must not keep the lock
		if _, err := s.power(f); err == nil || !strings.Contains(err.Error(), "cluster x has no node x-2") {
			t.Errorf("starting a removed node: %v", err)
		}
	}
}

func TestANodeIsFrozenOnlyWhenReadyAndStartsNothingUntilTheThaw(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l = l.OfNode(layout.Node{Name: "x-2", Number: 2})
	var sent []syscall.Signal
	send := func(signal syscall.Signal) error { sent = append(sent, signal); return nil }
	s := &Supervisor{
		config: Config{Layout: l}, progress: newProgress(time.Now()),
		launcher: &launcher{layout: l, reaper: reaper(), env: []string{"PATH=/usr/bin:/bin"}},
	}
	if err := s.freeze(true, send); err == nil || err.Error() != "node x-2 is Starting: freeze it when it is Ready" || len(sent) > 0 {
		t.Errorf("freezing a node that starts: %v, sent %v", err, sent)
	}
	s.progress.ready("ready")
	failed := errors.New("no such process")
	if err := s.freeze(true, func(syscall.Signal) error { return failed }); !errors.Is(err, failed) || s.isFrozen() {
		t.Errorf("a freeze that failed: %v, frozen: %t", err, s.isFrozen())
	}
	if err := s.freeze(true, send); err != nil {
		t.Fatal(err)
	}
	started := make(chan *proc.Process, 1)
	go func() {
		p, err := s.launcher.launch(component.Component{Name: "c", Program: "/bin/true"})
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	select {
	case <-started:
		t.Error("a frozen node started a process")
	case <-time.After(300 * time.Millisecond):
	}
	if err := s.freeze(false, send); err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-started:
		<-p.Done()
	case <-time.After(10 * time.Second):
		t.Error("a process that waited for the thaw is not started after it")
	}
	if len(sent) != 2 || sent[0] != syscall.SIGSTOP || sent[1] != syscall.SIGCONT {
		t.Errorf("sent %v", sent)
	}
}

func TestANodeWhoseSupervisorDoesNotAnswerIsCutWhenTheTimeIsOver(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	silent, err := net.Listen("unix", socket) // the kernel accepts for it
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	u := supervise(t, "exec sleep 60")
	eventually(t, "it runs", func() bool { return u.status().State == control.Running })
	u.mu.Lock()
	p := u.process
	u.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- (&further{client: control.NewClient(socket)}).shutDown(p, 300*time.Millisecond) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("nothing tells that the node was cut")
		}
	case <-time.After(10 * time.Second):
		t.Error("a silent supervisor holds up the end of the cluster")
	}
}

func TestANodeIsNotRecordedUnlessItsZoneCanBe(t *testing.T) {
	s := supervising(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	if err := s.addNode(t.Context(), "x-2"); err == nil || !strings.Contains(err.Error(), "zone") {
		t.Errorf("adding a node without a zone: %v", err)
	}
	if len(s.nodes) > 0 || len(s.state.Nodes) > 0 {
		t.Errorf("a node that never started is recorded: %v", s.state.Nodes)
	}
}
