package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// remembered is of how many callers the pace is known, forgotten how long one must
	// be silent to be as new.
	remembered = 10_000
	forgotten  = 10 * time.Minute
)

// pace bounds how often callers may call: all of a group together, and each account of a
// namespace by its share, so that one leaves something to the others. Whoever may edit a
// namespace may make accounts there, so accounts alone bound nothing.
type pace struct{ groups, accounts *limiter }

func newPace(limits Limits) *pace {
	return &pace{newLimiter(limits.PerSecond, limits.Burst), newLimiter(limits.PerSecond*3/4, share(limits.Burst))}
}

// share is what of a group's limit one account of a namespace may have: three quarters,
// rounded up.
func share(limit int) int { return (3*limit + 3) / 4 }

// take takes one turn of a caller, or says how long to wait for the next.
func (p *pace) take(c *caller) error {
	if c.home != "" {
		if err := p.accounts.take(c.user.Username); err != nil {
			return err
		}
	}
	return p.groups.take(c.group())
}

// limiter bounds how often each of many may do something.
type limiter struct {
	perSecond rate.Limit
	burst     int

	mu   sync.Mutex
	each *cache.LRUExpireCache
}

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{perSecond: rate.Limit(perSecond), burst: burst, each: cache.NewLRUExpireCache(remembered)}
}

// take takes one turn of somebody's, or says how long to wait for the next.
func (l *limiter) take(who string) error {
	turn := l.of(who).Reserve()
	wait := turn.Delay()
	if turn.OK() && wait == 0 {
		return nil
	}
	turn.Cancel()
	return &tooMany{"calls: wait and try again", wait}
}

func (l *limiter) of(who string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	pace := rate.NewLimiter(l.perSecond, l.burst)
	if found, ok := l.each.Get(who); ok {
		if its, ok := found.(*rate.Limiter); ok {
			pace = its
		}
	}
	l.each.Add(who, pace, forgotten)
	return pace
}
