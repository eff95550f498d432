// Package hangguard limits calls that may never return, such as those to a file system whose server
// hangs. Each call has a time limit, and only one per key runs. It must not know what is called.
package hangguard

import (
	"errors"
	"sync"
	"time"
)

// ErrNoAnswer says that no answer came in time. It may still come, or never.
var ErrNoAnswer = errors.New("there is no answer")

// Asker asks one question per key at a time. A question that hangs keeps a thread of the process,
// and nothing can end it. So however many callers ask, only one question runs. The zero value is
// ready for use.
type Asker struct {
	mu    sync.Mutex
	asked map[string]*question // not answered yet
	slow  map[string]bool      // keys whose last answer came too late
}

type question struct {
	answered chan struct{}
	// begun is when it was asked.
	begun time.Time
	// overdue says that a caller has waited in vain, and that the question had the caller's full
	// limit.
	overdue bool
	// forgotten says that its duration must not be recorded.
	forgotten bool
}

// Ask calls ask and waits at most limit for its answer; otherwise the error is ErrNoAnswer. Only
// one question per key runs at a time.
//
// If an earlier question of the key is running, Ask waits for it first. If that one is overdue, Ask
// fails at once. The new question then has only the rest of limit. So it becomes overdue only when
// a later caller gives up and it has had that caller's full limit.
//
// An answer that comes too late is passed to late, which must release its resources.
func Ask[T any](a *Asker, key string, limit time.Duration, ask func() (T, error), late func(T, error)) (T, error) {
	var none T
	begun := time.Now()
	over := time.NewTimer(limit)
	defer over.Stop()
	q := a.begin(key, begun, limit, over.C)
	if q == nil {
		return none, ErrNoAnswer
	}
	type answer struct {
		value T
		err   error
	}
	answers, left := make(chan answer), make(chan struct{})
	go func() {
		value, err := ask()
		a.end(key, q)
		select {
		case answers <- answer{value, err}:
		case <-left:
			late(value, err)
		}
	}()
	select {
	case got := <-answers:
		return got.value, got.err
	case <-over.C:
		a.giveUp(q, limit)
		close(left)
		return none, ErrNoAnswer
	}
}

// Overdue says whether a caller has waited in vain for the key's running question.
func (a *Asker) Overdue(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.asked[key]
	return q != nil && q.overdue
}

// Slow says whether the last answer to a question of the key came too late.
func (a *Asker) Slow(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slow[key]
}

// Forget drops what is remembered of the speed of a key's answers. A question that is still running
// is not remembered either.
func (a *Asker) Forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.slow, key)
	if q := a.asked[key]; q != nil {
		q.forgotten = true
	}
}

// begin gives the question that the caller may now ask, or nil if an earlier one is not answered in
// time. The caller came at a time, and waits until over.
func (a *Asker) begin(key string, came time.Time, limit time.Duration, over <-chan time.Time) *question {
	begun := came
	for ; ; begun = time.Now() {
		a.mu.Lock()
		earlier := a.asked[key]
		if earlier == nil {
			if a.asked == nil {
				a.asked = map[string]*question{}
			}
			q := &question{answered: make(chan struct{}), begun: begun}
			a.asked[key] = q
			a.mu.Unlock()
			return q
		}
		overdue := earlier.overdue
		a.mu.Unlock()
		if overdue {
			return nil
		}
		select {
		case <-earlier.answered:
		case <-over:
			a.giveUp(earlier, limit)
			return nil
		}
	}
}

// giveUp notes that a caller with this limit no longer waits for a question.
func (a *Asker) giveUp(q *question, limit time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(q.begun) >= limit {
		q.overdue = true
	}
}

func (a *Asker) end(key string, q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asked, key)
	delete(a.slow, key)
	if q.overdue && !q.forgotten {
		if a.slow == nil {
			a.slow = map[string]bool{}
		}
		a.slow[key] = true
	}
	close(q.answered)
}
