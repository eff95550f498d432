package stages

import (
	"context"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// broadcast passes the events of PavStages to the calls that wait for them.
type broadcast struct {
	mu   sync.Mutex
	subs map[string]map[*subscription]bool
}

// subscription is what one call knows of the stage of one name.
type subscription struct {
	mu      sync.Mutex
	stage   *tarnv1.PavStage
	gone    map[types.UID]bool
	failed  map[types.UID]string
	changed chan struct{}
}

func (b *broadcast) see(stage *tarnv1.PavStage, gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs[stage.Name] {
		s.see(stage, gone)
	}
}

// tell passes this agent's own writes to the calls that wait.
func (b *broadcast) tell(stage *tarnv1.PavStage) {
	b.mu.Lock()
	heard := len(b.subs[stage.Name]) > 0
	b.mu.Unlock()
	if heard {
		b.see(stage.DeepCopy(), false)
	}
}

func (b *broadcast) subscribe(name string) (s *subscription, end func()) {
	s = &subscription{
		gone:    map[types.UID]bool{},
		failed:  map[types.UID]string{},
		changed: make(chan struct{}),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[string]map[*subscription]bool{}
	}
	if b.subs[name] == nil {
		b.subs[name] = map[*subscription]bool{}
	}
	b.subs[name][s] = true
	return s, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs[name], s)
		if len(b.subs[name]) == 0 {
			delete(b.subs, name)
		}
	}
}

func (s *subscription) see(stage *tarnv1.PavStage, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage == nil || version(stage) >= version(s.stage) { // of the agent's own writes the events come later
		s.stage = stage
	}
	if gone {
		s.gone[stage.UID] = true
	}
	if stage.Status.Node.Phase == tarnv1.StageFailed {
		s.failed[stage.UID] = stage.Status.Node.Message
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// next is closed at the next event. Take it before reading any state, so that no event is missed
// between read and wait.
func (s *subscription) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// newest is the newer of the known stage and the stage of the last event; nil if that one was
// deleted.
func (s *subscription) newest(known *tarnv1.PavStage) *tarnv1.PavStage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage != nil && (known == nil || version(s.stage) > version(known)) {
		known = s.stage.DeepCopy()
	}
	if known != nil && s.gone[known.UID] {
		return nil
	}
	return known
}

// failure is the message of the stage with that UID, if it was seen to fail.
func (s *subscription) failure(uid types.UID) (message string, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	message, failed = s.failed[uid]
	return message, failed
}

// version orders the versions of objects of one kind, as Kubernetes guarantees.
func version(stage *tarnv1.PavStage) uint64 {
	n, err := strconv.ParseUint(stage.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// queue takes stages to reconcile without an event. The zero value is ready for use. Adding one
// never blocks: the caller may serve a call of the kubelet, or deliver file and API events. A
// channel would block until the worker begins, and for ever after it has ended.
type queue struct {
	mu     sync.Mutex
	worker workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the worker begins
	early  map[string]bool                                         // by name of the stage, until then
}

func (q *queue) add(stage string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.worker != nil {
		q.worker.Add(requestFor(stage)) // which drops it if the worker has ended
		return
	}
	if q.early == nil {
		q.early = map[string]bool{}
	}
	q.early[stage] = true
}

// start connects the worker's queue and enqueues the stages added so far.
func (q *queue) start(_ context.Context, worker workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.worker = worker
	for stage := range q.early {
		worker.Add(requestFor(stage))
	}
	q.early = nil
	return nil
}

func requestFor(stage string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: stage}}
}
