// Package hangguard asks what may never be answered, such as a file system whose server
// hangs: for so long, and once. It must not know what is asked.
package hangguard

import (
	"errors"
	"sync"
	"time"
)

// ErrNoAnswer says that there was no answer in time. Whether there ever is one nobody
// can tell.
var ErrNoAnswer = errors.New("there is no answer")

// Asker asks one question a key at a time. A question that hangs keeps a thread of the
// process, and nothing can end it: so however often is asked, there is one. The zero value
// is ready for use.
type Asker struct {
	mu    sync.Mutex
	asked map[string]*question // those that are not answered yet
	slow  map[string]bool      // whose last answer came when nobody waited for it any more
}

type question struct {
	answered chan struct{}
	// begun is when it was asked.
	begun time.Time
	// overdue says that somebody has waited for it in vain, and it had all the time that
	// one grants.
	overdue bool
	// forgotten says that nobody wants to know how long it took.
	forgotten bool
}

// Ask asks, and waits no longer than limit for the answer. Where an earlier question of the
// same key is still under way that one is waited for first, and not at all if it is overdue:
// the own question then has what is left of limit, and is overdue only if somebody after it
// has waited so long that it had all of that. late is given the answer that comes when nobody
// waits for it any more; it has to release what that holds.
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

// Overdue says whether a question of the key has been waited for in vain and is still not
// answered.
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

// Forget drops what is remembered of a key's answers, and of that to a question which is
// still under way.
func (a *Asker) Forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.slow, key)
	if q := a.asked[key]; q != nil {
		q.forgotten = true
	}
}

// begin gives the question that may now be asked, by one who came at a time and waits until
// over; nil if an earlier one is not answered.
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

// giveUp notes that somebody does not wait for a question any more who grants it so much time.
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
