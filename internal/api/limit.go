package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// remembered is how many callers are counted. forgotten is how long a caller must be silent to
	// be counted as new.
	remembered = 10_000
	forgotten  = 10 * time.Minute
)

// pace limits how often callers may call. It limits a group as a whole, and each service account of
// a namespace to its share, so that one account cannot use up the limit of all. A limit for
// accounts alone would not help: an editor of a namespace may create any number of accounts.
type pace struct{ groups, accounts *limiter }

func newPace(limits Limits) *pace {
	return &pace{newLimiter(limits.PerSecond, limits.Burst), newLimiter(limits.PerSecond*3/4, share(limits.Burst))}
}

// share is the part of a group's limit that one account may use: three quarters, rounded up.
func share(limit int) int { return (3*limit + 3) / 4 }

// take counts one call of a caller, or returns how long to wait for the next.
func (p *pace) take(c *caller) error {
	if c.home != "" {
		if err := p.accounts.take(c.user.Username); err != nil {
			return err
		}
	}
	return p.groups.take(c.group())
}

// limiter limits how often each of many callers may do something.
type limiter struct {
	perSecond rate.Limit
	burst     int

	mu   sync.Mutex
	each *cache.LRUExpireCache
}

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{perSecond: rate.Limit(perSecond), burst: burst, each: cache.NewLRUExpireCache(remembered)}
}

// take counts one call of who, or returns how long to wait for the next.
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
