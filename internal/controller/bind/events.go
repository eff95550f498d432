package bind

import (
	"container/list"
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

const (
	// eventAction is how what Events say was being done begins.
	eventAction = "Bind"
	// repeatAfter is after how long an unchanged Event is posted again: API servers delete Events
	// after an hour.
	repeatAfter = 30 * time.Minute
	// changeAfter is after how long an Event is posted again if another was posted in between. It
	// keeps two reconciles from alternating their Events without end.
	changeAfter = time.Minute
	// restTime is how long a Normal Event waits before it is posted. It says what a claim waits
	// for, which is usually over by then when many claims are bound at once.
	restTime = 2 * time.Second
	// mostDelay is how much longer a Normal Event waits while many claims are in work, because
	// posting it would delay them.
	mostDelay = time.Minute
	// eventsPerSecond and eventsAtOnce bound how much of the API server's time goes
	// to Events, which is time taken from binding.
	eventsPerSecond = 20
	eventsAtOnce    = 50
)

// eventQueue posts Events about claims and volumes in the background, slowly. It posts each once until
// it changes, and not at all if its subject is settled by then. A Normal Event waits restTime, and
// up to mostDelay more while many claims are in work. A Warning does not wait and precedes all
// Normal Events: many waiting claims must not hide a lost one.
type eventQueue struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock
	limiter  flowcontrol.RateLimiter
	settled  func(regarding runtime.Object) bool
	// busy says whether the API server's capacity is needed for binding. It is called only when
	// there is an Event to post.
	busy func() bool

	mu   sync.Mutex
	sent map[types.UID]*eventHistory
	// warnings and normals are the Events that wait, each in order of due time. At most one Event
	// of a reason waits for one object, however slowly they are posted.
	warnings, normals list.List
	added             chan struct{} // has an element if Events were added since the last check
	// after lets tests control the timers.
	after func(time.Duration) <-chan time.Time
}

// queuedEvent is one Event that waits to be posted.
type queuedEvent struct {
	post      Post
	hash      uint64 // the hash of its text
	regarding runtime.Object
	related   runtime.Object
	uid       types.UID
	due       time.Time // the earliest time to post it
}

// eventHistory is what was posted about one object: the last Event of each reason, and the reason of the
// last Event. It exists until forget removes it.
type eventHistory struct {
	last     string
	byReason map[string]sentEvent
}

// sentEvent is the last posted Event of a reason: the hash of its text, and its time. It keeps no
// object, as many wait for long.
type sentEvent struct {
	hash   uint64
	at     time.Time
	queued *list.Element // the waiting Event of this reason, nil for none
}

// repeats says whether an Event would repeat one that was posted a short time ago.
func (h *eventHistory) repeats(s *queuedEvent, now time.Time) bool {
	before := h.byReason[s.post.Reason]
	pause := repeatAfter
	if h.last != s.post.Reason || h.awaits(s.post.Reason) {
		pause = changeAfter
	}
	return before.hash == s.hash && now.Sub(before.at) < pause
}

// awaits says whether an Event of another reason waits to be posted.
func (h *eventHistory) awaits(other string) bool {
	for reason, of := range h.byReason {
		if of.queued != nil && reason != other {
			return true
		}
	}
	return false
}

// sum is a hash of an Event's subject, type, reason and text.
func (p *Post) sum() uint64 {
	h := fnv.New64a()
	for _, word := range []string{string(p.On), p.Type, p.Reason, p.Note} {
		_, _ = h.Write([]byte(word + "\x00")) // a hash never returns an error
	}
	return h.Sum64()
}

// doing is an action that differs for each text. Kubernetes' recorder counts Events with the same
// action as one repeated Event, and keeps the first text.
func (p *Post) doing() string {
	return fmt.Sprintf("%s-%08x", eventAction, uint32(p.sum()))
}

func newEventQueue(recorder events.EventRecorder, c clock.PassiveClock, over func(runtime.Object) bool) *eventQueue {
	return &eventQueue{
		recorder: recorder, clock: c, settled: over, busy: func() bool { return false }, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
		sent: map[types.UID]*eventHistory{}, added: make(chan struct{}, 1), after: clock.RealClock{}.After,
	}
}

// post queues an Event, unless the last one of its reason about its object said the same a short
// time ago.
func (p *eventQueue) post(on pair, post Post) {
	post.Note = kube.Note(post.Note) // the part that is cut off is no news
	s := &queuedEvent{post: post, hash: post.sum()}
	switch {
	case post.On == OnClaim && on.claim != nil:
		s.regarding, s.uid = on.claim, on.claim.UID
		if on.volume != nil {
			s.related = on.volume
		}
	case post.On == OnVolume && on.volume != nil:
		s.regarding, s.uid = on.volume, on.volume.UID
		if on.claim != nil {
			s.related = on.claim
		}
	default:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.sent[s.uid]
	if h == nil {
		h = &eventHistory{byReason: map[string]sentEvent{}}
		p.sent[s.uid] = h
	}
	now := p.clock.Now()
	if h.byReason[post.Reason].queued == nil && h.repeats(s, now) {
		return
	}
	p.insert(h, s, now)
	select {
	case p.added <- struct{}{}:
	default:
	}
}

// insert adds an Event to its list. It replaces a waiting Event of the same reason, so that frequent
// changes cannot delay it for ever. take decides later whether it is news.
func (p *eventQueue) insert(h *eventHistory, s *queuedEvent, now time.Time) {
	of := h.byReason[s.post.Reason]
	if of.queued != nil {
		other := of.queued.Value.(*queuedEvent)
		if p.listOf(other) == p.listOf(s) {
			s.due, of.queued.Value = other.due, s
			return
		}
		p.listOf(other).Remove(of.queued)
	}
	if s.due = now; s.post.Type == corev1.EventTypeNormal {
		s.due = now.Add(restTime)
	}
	of.queued = p.listOf(s).PushBack(s)
	h.byReason[s.post.Reason] = of
}

// listOf returns the list in which an Event waits.
func (p *eventQueue) listOf(s *queuedEvent) *list.List {
	if s.post.Type == corev1.EventTypeNormal {
		return &p.normals
	}
	return &p.warnings
}

// forget drops what was posted, and what waits to be posted, about an object that is gone or bound.
// Waiting Warnings stay. A claim's loss is posted once, and is worth reporting even after its
// volume is back.
func (p *eventQueue) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.sent[uid]
	if h == nil {
		return
	}
	for reason, of := range h.byReason {
		if of.queued != nil && p.listOf(of.queued.Value.(*queuedEvent)) == &p.warnings {
			h.byReason[reason] = sentEvent{queued: of.queued}
			continue
		}
		if of.queued != nil {
			p.normals.Remove(of.queued)
		}
		delete(h.byReason, reason)
	}
	if len(h.byReason) == 0 {
		delete(p.sent, uid)
	}
}

// Start posts due Events until the context ends.
func (p *eventQueue) Start(ctx context.Context) error {
	for {
		s, pause, ok := p.next()
		if !ok {
			var due <-chan time.Time // nil, which never fires, if nothing waits
			if pause > 0 {
				due = p.after(pause)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-p.added:
			case <-due:
			}
			continue
		}
		over := p.settled(s.regarding)
		if over {
			p.forget(s.uid) // again: it may have been queued after the object was forgotten
		}
		if over && s.post.Type == corev1.EventTypeNormal {
			continue
		}
		if p.limiter.Wait(ctx) != nil {
			return nil //nolint:nilerr // the context has ended
		}
		p.recorder.Eventf(s.regarding, s.related, s.post.Type, s.post.Reason, s.post.doing(), "%s", s.post.Note)
	}
}

// next takes the first Event that is due and says something new. If there is none, pause is how
// long until the first waiting one is due, 0 if none waits.
func (p *eventQueue) next() (s queuedEvent, pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	for {
		first := p.warnings.Front()
		if first == nil {
			first = p.normals.Front()
		}
		if first == nil {
			return queuedEvent{}, 0, false
		}
		s := first.Value.(*queuedEvent)
		if pause := s.due.Sub(now); pause > 0 {
			return queuedEvent{}, pause, false
		}
		if s.post.Type == corev1.EventTypeNormal && now.Before(s.due.Add(mostDelay)) && p.busy() {
			return queuedEvent{}, restTime, false
		}
		if p.take(s, now) {
			return *s, 0, true
		}
	}
}

// take removes an Event from its list and says whether to post it. Only a posted Event suppresses
// later repetitions: an Event may wait for long.
func (p *eventQueue) take(s *queuedEvent, now time.Time) bool {
	h := p.sent[s.uid]
	again := h.repeats(s, now)
	of := h.byReason[s.post.Reason]
	p.listOf(s).Remove(of.queued)
	if of.queued = nil; !again {
		of.hash, of.at, h.last = s.hash, now, s.post.Reason
	}
	h.byReason[s.post.Reason] = of
	return !again
}

// settled says whether an Event's claim is bound by now, or its object is gone. A lost claim is not
// settled.
func (c *cache) settled(regarding runtime.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o := regarding.(type) {
	case *corev1.PersistentVolumeClaim:
		now := c.claims[keyOf(o)]
		return now == nil || now.UID != o.UID || volume.StateOfClaim(now) == volume.ClaimCompleted && now.Status.Phase != corev1.ClaimLost
	case *corev1.PersistentVolume:
		now := c.volumes[o.Name]
		return now == nil || now.UID != o.UID
	}
	return false
}
