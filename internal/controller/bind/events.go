package bind

import (
	"context"
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
	// eventAction is what Events say was being done.
	eventAction = "Bind"
	// repeatAfter is when an Event that would say the same again is posted all the
	// same: API servers forget Events after an hour.
	repeatAfter = 30 * time.Minute
	// changeAfter is when an Event is posted again if another was posted since: what two
	// looks tell in turn must not be told for ever.
	changeAfter = time.Minute
	// eventsPerSecond and eventsAtOnce bound how much of the API server's time goes
	// to Events, which is time taken from binding.
	eventsPerSecond = 20
	eventsAtOnce    = 50
)

// poster posts Events about claims and volumes, apart from the work on them: slowly,
// each once until it changes, and not at all if what it says is over by then.
type poster struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock
	limiter  flowcontrol.RateLimiter
	over     func(regarding runtime.Object) bool

	mu    sync.Mutex
	said  map[types.UID]*history
	queue []saying
	more  chan struct{} // has one element while the queue is not empty
}

// saying is one Event in the queue.
type saying struct {
	post      Post
	regarding runtime.Object
	related   runtime.Object
	uid       types.UID
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

func newPoster(recorder events.EventRecorder, c clock.PassiveClock, over func(runtime.Object) bool) *poster {
	return &poster{
		recorder: recorder, clock: c, over: over, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
		said: map[types.UID]*history{}, more: make(chan struct{}, 1),
	}
}

// post has an Event posted unless it was the last of its reason about its subject and
// is not old.
func (p *poster) post(on pair, post Post) {
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
	p.queue = append(p.queue, s)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// forget drops what was said about an object that is gone, or bound.
func (p *poster) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.said, uid)
}

// Start posts what is in the queue until the context ends.
func (p *poster) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.more:
		}
		for s, ok := p.next(); ok; s, ok = p.next() {
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
			p.recorder.Eventf(s.regarding, s.related, s.post.Type, s.post.Reason, eventAction, "%s", kube.Note(s.post.Note))
		}
	}
}

// next takes from the queue the next Event that is still the last of its reason.
func (p *poster) next() (saying, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		s := p.queue[0]
		p.queue[0] = saying{}
		p.queue = p.queue[1:]
		h := p.said[s.uid]
		if h == nil {
			return s, true
		}
		if last, ok := h.by[s.post.Reason]; !ok || last.what == s.post.sum() {
			return s, true
		}
	}
	p.queue = nil
	return saying{}, false
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
