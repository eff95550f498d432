package stages

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// hub passes the events of PavStages to the calls that wait for them.
type hub struct {
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

func (h *hub) handler() toolscache.ResourceEventHandler {
	see := func(object any, gone bool) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if stage, ok := object.(*tarnv1.PavStage); ok {
			h.see(stage, gone)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { see(object, false) },
		UpdateFunc: func(_, object any) { see(object, false) },
		DeleteFunc: func(object any) { see(object, true) },
	}
}

func (h *hub) see(stage *tarnv1.PavStage, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs[stage.Name] {
		s.see(stage, gone)
	}
}

// tell passes this agent's own writes to the calls that wait.
func (h *hub) tell(stage *tarnv1.PavStage) {
	h.mu.Lock()
	heard := len(h.subs[stage.Name]) > 0
	h.mu.Unlock()
	if heard {
		h.see(stage.DeepCopy(), false)
	}
}

func (h *hub) subscribe(name string) (s *subscription, end func()) {
	s = &subscription{
		gone:    map[types.UID]bool{},
		failed:  map[types.UID]string{},
		changed: make(chan struct{}),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = map[string]map[*subscription]bool{}
	}
	if h.subs[name] == nil {
		h.subs[name] = map[*subscription]bool{}
	}
	h.subs[name][s] = true
	return s, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs[name], s)
		if len(h.subs[name]) == 0 {
			delete(h.subs, name)
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
