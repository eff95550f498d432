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
	// repeatAfter is when an Event that would say the same again is posted all the
	// same: API servers forget Events after an hour.
	repeatAfter = 30 * time.Minute
	// changeAfter is when an Event is posted again if another was posted since: what two
	// looks tell in turn must not be told for ever.
	changeAfter = time.Minute
	// restTime is how long a Normal Event waits before it is posted. It tells what a claim
	// waits for, which is mostly over by then where many are bound at once.
	restTime = 2 * time.Second
	// mostDelay is how much longer it waits where many claims are on their way, whose turn
	// it would take.
	mostDelay = time.Minute
	// eventsPerSecond and eventsAtOnce bound how much of the API server's time goes
	// to Events, which is time taken from binding.
	eventsPerSecond = 20
	eventsAtOnce    = 50
)

// poster posts Events about claims and volumes, apart from the work on them: slowly,
// each once until it changes, and not at all if what it says is over by then. A Normal one
// waits a moment for that, and a minute more while many claims are on their way. A Warning
// does not, and goes before all that are Normal: many claims that wait must not hide the one
// that is lost.
type poster struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock
	limiter  flowcontrol.RateLimiter
	over     func(regarding runtime.Object) bool
	// busy says whether the API server's time is wanted for binding. It is asked where there
	// is something to post.
	busy func() bool

	mu   sync.Mutex
	said map[types.UID]*history
	// warnings and normals are the sayings that wait, each in the order of their times. Of
	// one reason about one object no more than one waits, however slowly they are posted.
	warnings, normals list.List
	more              chan struct{} // has an element when one was added since it was looked last
	// after has tests say when a time has passed.
	after func(time.Duration) <-chan time.Time
}

// saying is one Event that waits to be posted.
type saying struct {
	post      Post
	what      uint64 // the hash of what it says
	regarding runtime.Object
	related   runtime.Object
	uid       types.UID
	due       time.Time // when it is posted, at the earliest
}

// history is what was said about one object: the last of each reason, and the reason of
// the last of all that were posted. It is there as long as an Event of the object waits.
type history struct {
	last string
	by   map[string]said
}

// said is the last Event of its reason that was posted, by the hash of what it says, and
// when it was. It keeps no object, as there are many that wait for long.
type said struct {
	what  uint64
	at    time.Time
	waits *list.Element // of the saying that is the next of this reason, nil for none
}

// again says whether an Event would repeat what was posted a short time ago.
func (h *history) again(s *saying, now time.Time) bool {
	before := h.by[s.post.Reason]
	pause := repeatAfter
	if h.last != s.post.Reason || h.awaits(s.post.Reason) {
		pause = changeAfter
	}
	return before.what == s.what && now.Sub(before.at) < pause
}

// awaits says whether an Event of another reason waits to be posted.
func (h *history) awaits(other string) bool {
	for reason, of := range h.by {
		if of.waits != nil && reason != other {
			return true
		}
	}
	return false
}

// sum tells what one Post says from what another does.
func (p *Post) sum() uint64 {
	h := fnv.New64a()
	for _, word := range []string{string(p.On), p.Type, p.Reason, p.Note} {
		_, _ = h.Write([]byte(word + "\x00")) // a hash takes everything
	}
	return h.Sum64()
}

// doing tells Events apart that differ in their note alone: Kubernetes' recorder counts
// those of one action as one that is repeated, and keeps the first note.
func (p *Post) doing() string {
	return fmt.Sprintf("%s-%08x", eventAction, uint32(p.sum()))
}

func newPoster(recorder events.EventRecorder, c clock.PassiveClock, over func(runtime.Object) bool) *poster {
	return &poster{
		recorder: recorder, clock: c, over: over, busy: func() bool { return false }, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
		said: map[types.UID]*history{}, more: make(chan struct{}, 1), after: clock.RealClock{}.After,
	}
}

// post has an Event posted unless it was the last of its reason about its subject and
// is not old.
func (p *poster) post(on pair, post Post) {
	post.Note = kube.Note(post.Note) // what is cut off makes no news
	s := &saying{post: post, what: post.sum()}
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
	h := p.said[s.uid]
	if h == nil {
		h = &history{by: map[string]said{}}
		p.said[s.uid] = h
	}
	now := p.clock.Now()
	if h.by[post.Reason].waits == nil && h.again(s, now) {
		return
	}
	p.put(h, s, now)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// put has an Event wait. It takes the place of one of its reason that waits already, so that
// what changes all the time is told all the same; whether it is news is seen in its turn.
func (p *poster) put(h *history, s *saying, now time.Time) {
	of := h.by[s.post.Reason]
	if of.waits != nil {
		other := of.waits.Value.(*saying)
		if p.listOf(other) == p.listOf(s) {
			s.due, of.waits.Value = other.due, s
			return
		}
		p.listOf(other).Remove(of.waits)
	}
	if s.due = now; s.post.Type == corev1.EventTypeNormal {
		s.due = now.Add(restTime)
	}
	of.waits = p.listOf(s).PushBack(s)
	h.by[s.post.Reason] = of
}

// listOf gives the list where an Event waits.
func (p *poster) listOf(s *saying) *list.List {
	if s.post.Type == corev1.EventTypeNormal {
		return &p.normals
	}
	return &p.warnings
}

// forget drops what was said about an object that is gone, or bound, and what waits to be
// said about it, but for Warnings: that a claim was lost is told once, and is worth telling
// when it has its volume back.
func (p *poster) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.said[uid]
	if h == nil {
		return
	}
	for reason, of := range h.by {
		if of.waits != nil && p.listOf(of.waits.Value.(*saying)) == &p.warnings {
			h.by[reason] = said{waits: of.waits}
			continue
		}
		if of.waits != nil {
			p.normals.Remove(of.waits)
		}
		delete(h.by, reason)
	}
	if len(h.by) == 0 {
		delete(p.said, uid)
	}
}

// Start posts what is due until the context ends.
func (p *poster) Start(ctx context.Context) error {
	for {
		s, pause, ok := p.next()
		if !ok {
			var due <-chan time.Time // never, where nothing rests
			if pause > 0 {
				due = p.after(pause)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-p.more:
			case <-due:
			}
			continue
		}
		over := p.over(s.regarding)
		if over {
			p.forget(s.uid) // which it was before, if it went while this was posted
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

// next takes the first Event that is due and says something new. Where there is none, pause
// is how long the first of those that rest still does, 0 if none rests.
func (p *poster) next() (s saying, pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	for {
		first := p.warnings.Front()
		if first == nil {
			first = p.normals.Front()
		}
		if first == nil {
			return saying{}, 0, false
		}
		s := first.Value.(*saying)
		if pause := s.due.Sub(now); pause > 0 {
			return saying{}, pause, false
		}
		if s.post.Type == corev1.EventTypeNormal && now.Before(s.due.Add(mostDelay)) && p.busy() {
			return saying{}, restTime, false
		}
		if p.take(s, now) {
			return *s, 0, true
		}
	}
}

// take has an Event wait no more, and says whether it is to be posted. Only then is it held
// against the next: where many wait, its turn may come long after it was said.
func (p *poster) take(s *saying, now time.Time) bool {
	h := p.said[s.uid]
	again := h.again(s, now)
	of := h.by[s.post.Reason]
	p.listOf(s).Remove(of.waits)
	if of.waits = nil; !again {
		of.what, of.at, h.last = s.what, now, s.post.Reason
	}
	h.by[s.post.Reason] = of
	return !again
}

// isOver says whether a claim that an Event calls waiting has its volume by now, or
// what an Event is about is gone. A claim that is lost is not over.
func (b *books) isOver(regarding runtime.Object) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch o := regarding.(type) {
	case *corev1.PersistentVolumeClaim:
		now := b.claims[keyOf(o)]
		return now == nil || now.UID != o.UID || volume.StateOfClaim(now) == volume.ClaimCompleted && now.Status.Phase != corev1.ClaimLost
	case *corev1.PersistentVolume:
		now := b.volumes[o.Name]
		return now == nil || now.UID != o.UID
	}
	return false
}
