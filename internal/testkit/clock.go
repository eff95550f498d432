package testkit

import (
	"sync/atomic"
	"time"
)

// PushedClock is the real clock, until it is put forward: so pauses need not be waited for.
type PushedClock struct{ ahead atomic.Int64 }

// Now is the time as the clock has it.
func (c *PushedClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since is how long ago a time is.
func (c *PushedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// PushTo puts the clock to a time that is still to come, and says whether it was.
func (c *PushedClock) PushTo(at time.Time) bool {
	if !c.Now().Before(at) {
		return false
	}
	c.ahead.Store(int64(time.Until(at) + time.Second))
	return true
}
