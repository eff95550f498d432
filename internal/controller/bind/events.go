package bind

import (
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
	// eventsPerSecond and eventsAtOnce bound how much of the API server's time goes
	// to Events, which is time taken from binding.
	eventsPerSecond = 20
	eventsAtOnce    = 50
)

// poster posts Events about claims and volumes, apart from the work on them: slowly,
// each once until it changes, and not at all if what it says is over by then. A Normal one
// waits a moment for that; a Warning does not.
type poster struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock
	limiter  flowcontrol.RateLimiter
	over     func(regarding runtime.Object) bool

	mu    sync.Mutex
	said  map[types.UID]*history
	queue []saying
	// resting are those that wait, in the order of their times.
	resting []saying
	more    chan struct{} // has an element when one was added since it was looked last
	// after has tests say when a time has passed.
	after func(time.Duration) <-chan time.Time
}

// saying is one Event in the queue.
type saying struct {
	post      Post
	regarding runtime.Object
	related   runtime.Object
	uid       types.UID
	due       time.Time // when it is posted, at the earliest
}

// history is what was said about one object: the last of each reason, and the reason
// of the last of all. It keeps no object, as there are many that wait for long.
type history struct {
	last string
	by   map[string]said
}

// said is an Event, by the hash of what it says, and when it was put in the queue.
type said struct {
	what uint64
	at   time.Time
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
		recorder: recorder, clock: c, over: over, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
		said: map[types.UID]*history{}, more: make(chan struct{}, 1), after: clock.RealClock{}.After,
	}
}

// post has an Event posted unless it was the last of its reason about its subject and
// is not old.
func (p *poster) post(on pair, post Post) {
	post.Note = kube.Note(post.Note) // what is cut off makes no news
	s := saying{post: post}
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
	now := said{what: post.sum(), at: p.clock.Now()}
	pause := repeatAfter
	if h.last != post.Reason {
		pause = changeAfter
	}
	if before, ok := h.by[post.Reason]; ok && before.what == now.what && now.at.Sub(before.at) < pause {
		return
	}
	h.last, h.by[post.Reason] = post.Reason, now
	if s.due = now.at; post.Type == corev1.EventTypeNormal {
		p.rest(s)
	} else {
		p.queue = append(p.queue, s)
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// rest has an Event wait, or takes it for one of its reason that waits already: what changes
// all the time is told all the same.
func (p *poster) rest(s saying) {
	for i := range p.resting {
		if other := &p.resting[i]; other.uid == s.uid && other.post.Reason == s.post.Reason && other.due.After(s.due) {
			other.post, other.regarding, other.related = s.post, s.regarding, s.related
			return
		}
	}
	s.due = s.due.Add(restTime)
	p.resting = append(p.resting, s)
}

// forget drops what was said about an object that is gone, or bound.
func (p *poster) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.said, uid)
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

// next takes the first Event that is due and still the last of its reason. Where there is
// none, pause is how long the first of those that rest still does, 0 if none rests.
func (p *poster) next() (s saying, pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue)+len(p.resting) > 0 {
		from := &p.queue
		if len(p.queue) == 0 || len(p.resting) > 0 && p.resting[0].due.Before(p.queue[0].due) {
			from = &p.resting
		}
		s := (*from)[0]
		if pause := s.due.Sub(p.clock.Now()); pause > 0 {
			return saying{}, pause, false
		}
		(*from)[0] = saying{}
		*from = (*from)[1:]
		if p.stands(s) {
			return s, 0, true
		}
	}
	p.queue, p.resting = nil, nil
	return saying{}, 0, false
}

// stands says whether nothing else has been said for an Event's reason since.
func (p *poster) stands(s saying) bool {
	h := p.said[s.uid]
	if h == nil {
		return true
	}
	last, ok := h.by[s.post.Reason]
	return !ok || last.what == s.post.sum()
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
