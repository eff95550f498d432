package supervisor

import (
	"context"
	"log"
	"sync"
	"time"

	"tarn.dev/tarn/cluster/internal/control"
)

// progress records the steps since the supervisor began. Followers see every step, including
// earlier ones.
type progress struct {
	began time.Time

	mu      sync.Mutex
	steps   []control.Step
	at      string // stage
	changed chan struct{}
}

func newProgress(began time.Time) *progress {
	return &progress{began: began, at: control.Starting, changed: make(chan struct{})}
}

// step records a line.
func (p *progress) step(text string) { p.add(control.Starting, text) }

// note records a line while the start is under way.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == control.Starting {
		p.addLocked(control.Starting, text)
	}
}

// tell records a line of the start, and only logs it after the start.
func (p *progress) tell(text string) {
	if at, _ := p.now(); at == control.Starting {
		p.note(text)
		return
	}
	log.Print(text)
}

// ready ends the start with success.
func (p *progress) ready(text string) { p.add(control.Ready, text) }

// fail ends the start with an error. What runs is left running, so that the user can inspect it.
func (p *progress) fail(err error) { p.add(control.Failed, err.Error()) }

func (p *progress) add(stage, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(stage, text)
}

func (p *progress) addLocked(stage, text string) {
	log.Printf("%s: %s", stage, text)
	p.steps = append(p.steps, control.Step{After: time.Since(p.began).Seconds(), Text: text, Stage: stage})
	p.at = stage
	close(p.changed)
	p.changed = make(chan struct{})
}

// stage changes the stage without a line.
func (p *progress) stage(stage string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = stage
}

// now returns the stage and the last line.
func (p *progress) now() (stage, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.steps) > 0 {
		text = p.steps[len(p.steps)-1].Text
	}
	return p.at, text
}

func (p *progress) follow(ctx context.Context, yield func(control.Step)) {
	for seen := 0; ; {
		p.mu.Lock()
		steps, changed := p.steps[seen:], p.changed
		p.mu.Unlock()
		for _, s := range steps {
			yield(s)
			if s.Stage != control.Starting {
				return
			}
		}
		seen += len(steps)
		if len(steps) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
