package bind

import (
	"context"
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
	said  map[types.UID]map[string]saying // the last of each reason
	queue []saying
	more  chan struct{} // has one element while the queue is not empty
}

// saying is one Event, and when it was put in the queue.
type saying struct {
	post      Post
	regarding runtime.Object
	related   runtime.Object
	uid       types.UID
	at        time.Time
}

func newPoster(recorder events.EventRecorder, c clock.PassiveClock, over func(runtime.Object) bool) *poster {
	return &poster{
		recorder: recorder, clock: c, over: over, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce),
		said: map[types.UID]map[string]saying{}, more: make(chan struct{}, 1),
	}
}

// post has an Event posted unless it was the last of its reason about its subject and
// is not old.
func (p *poster) post(on pair, post Post) {
	s := saying{post: post, at: p.clock.Now()}
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
	if last, ok := p.said[s.uid][post.Reason]; ok && last.post == post && s.at.Sub(last.at) < repeatAfter {
		return
	}
	if p.said[s.uid] == nil {
		p.said[s.uid] = map[string]saying{}
	}
	p.said[s.uid][post.Reason] = s
	p.queue = append(p.queue, s)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// forget drops what was said about an object that is gone.
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
			if s.post.Type == corev1.EventTypeNormal && p.over(s.regarding) {
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
		if p.said[s.uid][s.post.Reason].post == s.post {
			return s, true
		}
	}
	p.queue = nil
	return saying{}, false
}

// isOver says whether a claim that an Event calls waiting has its volume by now, or is
// gone.
func (b *books) isOver(regarding runtime.Object) bool {
	claim, ok := regarding.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.claims[keyOf(claim)]
	return now == nil || now.UID != claim.UID || volume.StateOfClaim(now) == volume.ClaimCompleted
}
