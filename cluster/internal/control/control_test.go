package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fake is a supervisor with a start of three steps.
type fake struct {
	restarted []string
	asked     []string
	stopped   bool
	last      string
}

func (f *fake) Status() Status { return Status{Name: "x", Stage: Ready} }
func (f *fake) Stop()          { f.stopped = true }
func (f *fake) Follow(_ context.Context, yield func(Step)) {
	yield(Step{Text: "one", Stage: Starting})
	yield(Step{Text: "two", Stage: Starting})
	if f.last != "" {
		yield(Step{Text: "three", Stage: f.last})
	}
}
func (f *fake) Node(_ context.Context, name, request string) error {
	if name == "nothing" {
		return errors.New("no such node")
	}
	f.asked = append(f.asked, request+" "+name)
	return nil
}
func (f *fake) Restart(name string, kill bool) error {
	if name == "nothing" {
		return errors.New("no such component")
	}
	if kill {
		name += " by force"
	}
	f.restarted = append(f.restarted, name)
	return nil
}

func serve(t *testing.T, f *fake) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go Serve(l, f) //nolint:errcheck // ends with the test
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v: others could stop the cluster", info.Mode(), err)
	}
	return NewClient(socket)
}

func TestRequestsReachTheSupervisor(t *testing.T) {
	f := &fake{}
	c, ctx := serve(t, f), context.Background()
	if s, err := c.Status(ctx); err != nil || s.Name != "x" || s.Stage != Ready {
		t.Errorf("status %+v, %v", s, err)
	}
	for name, kill := range map[string]bool{"kubelet": false, "etcd": true} {
		if err := c.Restart(ctx, name, kill); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(f.restarted)
	if got := strings.Join(f.restarted, ","); got != "etcd by force,kubelet" {
		t.Errorf("restarted %s", got)
	}
	if err := c.Restart(ctx, "nothing", false); err == nil || err.Error() != "no such component" {
		t.Errorf("the supervisor's refusal arrived as %v", err)
	}
	if err := c.Node(ctx, "x-2", CutNode); err != nil || !slices.Equal(f.asked, []string{"cut x-2"}) {
		t.Errorf("about nodes it was asked %q, %v", f.asked, err)
	}
	if err := c.Node(ctx, "nothing", CutNode); err == nil || err.Error() != "no such node" {
		t.Errorf("the supervisor's refusal arrived as %v", err)
	}
	if err := c.Stop(ctx); err != nil || !f.stopped {
		t.Errorf("stop: %v", err)
	}
}

func TestFollowingAStartEndsWithItsOutcome(t *testing.T) {
	for _, outcome := range []string{Ready, Failed} {
		var seen []string
		last, err := serve(t, &fake{last: outcome}).Follow(context.Background(), func(s Step) { seen = append(seen, s.Text) })
		if err != nil || last.Stage != outcome || strings.Join(seen, " ") != "one two three" {
			t.Errorf("saw %v, last %+v, %v", seen, last, err)
		}
	}
}

func TestASupervisorThatDiesHalfWayIsAnError(t *testing.T) {
	if _, err := serve(t, &fake{}).Follow(context.Background(), func(Step) {}); err == nil {
		t.Error("a start without an end passed for one that ended")
	}
}

func TestASupervisorThatHangsIsAnError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket) // which nobody serves
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(socket)
	c.patience = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.Status(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("got %v, after the end of the test's own patience: %v", err, ctx.Err())
	}
}

func TestNobodyAnsweringIsAnError(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "none"))
	if c.Answers(context.Background()) {
		t.Error("nobody listens, and somebody answered")
	}
}
