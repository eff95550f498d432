package testkit

import (
	"sync/atomic"
	"time"
)

// PushedClock is the real clock until a test puts it forward, so that tests need not wait for
// pauses.
type PushedClock struct{ ahead atomic.Int64 }

// Now is the time of the clock.
func (c *PushedClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since is the time that has passed since t.
func (c *PushedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// PushTo moves the clock forward to a time. It reports whether that time was in the future.
func (c *PushedClock) PushTo(at time.Time) bool {
	if !c.Now().Before(at) {
		return false
	}
	c.ahead.Store(int64(time.Until(at) + time.Second))
	return true
}
