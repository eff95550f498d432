package stages

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/node/nodetest"
	"tarn.dev/tarn/internal/node/podend"
)

func TestACallHearsOfAnOwnWriteAtOnceAndIsNotTakenBackByOlderEvents(t *testing.T) {
	b := broadcast{}
	sub, end := b.subscribe("s")
	defer end()
	at := func(version string, phase tarnv1.StageNodePhase) *tarnv1.PavStage {
		return stage(node(phase), func(s *tarnv1.PavStage) { s.Name, s.ResourceVersion = "s", version })
	}
	for _, step := range []struct {
		what string
		see  func()
		want tarnv1.StageNodePhase
	}{
		{"an event", func() { b.see(at("5", tarnv1.StageWaiting), false) }, tarnv1.StageWaiting},
		{"an own write", func() { b.tell(at("9", tarnv1.StageStaged)) }, tarnv1.StageStaged},
		{"the event of a write before it", func() { b.see(at("7", tarnv1.StageWaiting), false) }, tarnv1.StageStaged},
		{"the event of a write after it", func() { b.see(at("11", tarnv1.StageLost), false) }, tarnv1.StageLost},
	} {
		changed := sub.next()
		step.see()
		select {
		case <-changed:
		default:
			t.Errorf("%s does not wake the call", step.what)
		}
		if got := sub.newest(nil); got.Status.Node.Phase != step.want {
			t.Errorf("after %s the call knows of %s, want %s", step.what, got.Status.Node.Phase, step.want)
		}
	}
}

// The caller of queue.add serves a publish call, or delivers an event of /pav/ready or of the
// informer. It must not wait for a worker that has not begun or has ended.
func TestWhoWakesTheWorkerWaitsForNobody(t *testing.T) {
	s, err := New(Config{})
	nodetest.Must(t, err)
	const many = 1000
	wake := func(when string) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range many {
				s.queue.add(fmt.Sprint("stage-", i))
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("it waits when the worker %s", when)
		}
	}
	wake("has not begun")
	queue := priorityqueue.New[reconcile.Request]("test")
	nodetest.Must(t, s.queue.start(t.Context(), queue))
	wake("has much to do")
	looked := map[string]bool{}
	for len(looked) < many {
		request, ended := queue.Get()
		if ended || looked[request.Name] {
			t.Fatalf("after %d stages the worker gets %v, ended %t", len(looked), request, ended)
		}
		looked[request.Name] = true
		queue.Done(request)
	}
	queue.ShutDown()
	wake("has ended")
}

func TestTheRunsOfAPodAreToldTogetherUntilItsLastEnds(t *testing.T) {
	f := newProcesses()
	first, second := podend.Run{ID: "first", Exited: true, ExitCode: 1}, podend.Run{ID: "second", Exited: true}
	for _, id := range []string{first.ID, second.ID} {
		if !f.begin("pod", id) {
			t.Errorf("%s is held already", id)
		}
		if f.begin("pod", id) {
			t.Errorf("%s is held twice", id)
		}
	}
	if got := f.end("pod", first); !reflect.DeepEqual(got, []podend.Run{first}) {
		t.Errorf("told of %+v, want the first", got)
	}
	if got := f.end("pod", second); !reflect.DeepEqual(got, []podend.Run{first, second}) {
		t.Errorf("told of %+v, want both", got)
	}
	if len(f.watched) != 0 {
		t.Errorf("held is %+v of a pod that has ended", f.watched)
	}
	if !f.begin("pod", first.ID) {
		t.Error("what has ended is held")
	}
}

func TestPodsAreLookedForTogetherAndOnce(t *testing.T) {
	f := newProcesses()
	f.want("one")
	f.want("two")
	if <-f.asked; len(f.asked) != 0 {
		t.Error("asked for twice")
	}
	if got := f.take(); len(got) != 2 {
		t.Errorf("took %v, want both", got)
	}
	if got := f.take(); len(got) != 0 {
		t.Errorf("took %v again", got)
	}
}
