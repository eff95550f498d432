package protect

import (
	"sync"
	"time"
)

// The pauses between two lists of the pods of one namespace. One claim that is deleted
// waits for none; a thousand that are deleted one after the other share a few lists.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	// restAfter is how long no list must have been made for the pauses to begin anew.
	restAfter = 2 * lastPause
)

// pace spaces out the lists of each namespace: the pause after one doubles as long as
// they go on. It decides when, never what, so nothing is lost when it forgets.
type pace struct {
	mu    sync.Mutex
	beats map[string]beat
}

// beat is when a namespace's pods were last listed, and the pause after that.
type beat struct {
	at    time.Time
	pause time.Duration
}

func newPace() *pace { return &pace{beats: map[string]beat{}} }

// earliest is when the pods of a namespace may be listed; not after now if at once.
func (p *pace) earliest(namespace string, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.beats[namespace]
	if !ok {
		return now
	}
	return last.at.Add(last.pause)
}

// listed notes a list. It forgets the namespaces that have come to rest.
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
