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
