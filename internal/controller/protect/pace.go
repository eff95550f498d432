package protect

import (
	"sync"
	"time"
)

// The pauses between two lists of the pods of one namespace. A single deleted claim does not wait;
// a thousand claims deleted one after the other share a few lists.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	// restAfter is the time without a list after which the pauses start small again.
	restAfter = 2 * lastPause
)

// pace spaces out the lists of each namespace: the pause doubles while lists continue. It decides
// only when to list, so losing its state does no harm.
type pace struct {
	mu    sync.Mutex
	beats map[string]beat
}

// beat is the time of a namespace's last list of pods, and the pause after it.
type beat struct {
	at    time.Time
	pause time.Duration
}

func newPace() *pace { return &pace{beats: map[string]beat{}} }

// earliest is when the pods of a namespace may be listed; at once if it is not after now.
func (p *pace) earliest(namespace string, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.beats[namespace]
	if !ok {
		return now
	}
	return last.at.Add(last.pause)
}

// listed records a list. It forgets namespaces without a list for restAfter.
func (p *pace) listed(namespace string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, last := range p.beats {
		if now.Sub(last.at) >= restAfter {
			delete(p.beats, name)
		}
	}
	pause := firstPause
	if last, ok := p.beats[namespace]; ok {
		pause = min(2*last.pause, lastPause)
	}
	p.beats[namespace] = beat{now, pause}
}
