package main

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// filled is a fake cache that is filled or not.
type filled bool

func (f filled) WaitForCacheSync(context.Context) bool { return bool(f) }

// term is the time during which one holder renews the lease, counted from the first check. The
// lease names that holder until the next term begins.
type term struct {
	holder      string
	from, until time.Duration
}

// lease is a fake of the API server's lease. Its holder renews it five times a second.
type lease struct {
	client.Reader
	terms []term
	ahead time.Duration // its holders' clock
	took  time.Duration // by a read
	began time.Time
}

func (l *lease) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	select {
	case <-time.After(l.took):
	case <-ctx.Done():
		return ctx.Err()
	}
	passed := time.Since(l.began)
	to, ok := o.(*coordinationv1.Lease)
	for _, t := range slices.Backward(l.terms) {
		if !ok || t.from > passed {
			continue
		}
		renewed := l.began.Add(l.ahead + min(passed, t.until).Truncate(200*time.Millisecond))
		to.Spec = coordinationv1.LeaseSpec{HolderIdentity: ptr.To(t.holder), LeaseDurationSeconds: ptr.To[int32](4), RenewTime: ptr.To(metav1.NewMicroTime(renewed))}
		return nil
	}
	return apierrors.NewNotFound(coordinationv1.Resource("leases"), key.Name)
}

// forEver is longer than any case.
const forEver = time.Hour

func TestAControllerIsReadyWhenItsCachesAreFilledAndOneLeads(t *testing.T) {
	waiting, won := make(chan struct{}), make(chan struct{})
	close(won)
	killed, dead := term{"another", 0, 3 * time.Second}, term{"another", -time.Hour, -time.Hour}
	for _, c := range []struct {
		name    string
		caches  filled
		elected chan struct{}
		lease   lease
		// last is the time of the last check; there is one every 2 s. want is a part of that
		// check's error. If want is empty, every check must find the controller ready.
		last time.Duration
		want string
	}{
		{"it leads, with empty caches", false, won, lease{}, 0, "not synced yet"},
		{"it leads", true, won, lease{}, 0, ""},
		{"nobody ever led", true, waiting, lease{}, 0, "the lease has no holder"},
		{"nobody ever led, and the last read is cut off", true, waiting, lease{took: 150 * time.Millisecond}, 0, "the lease has no holder"},
		{"another leads", true, waiting, lease{terms: []term{{"another", 0, forEver}}}, time.Minute, ""},
		{"another leads, whose clock is behind", true, waiting, lease{terms: []term{{"another", 0, forEver}}, ahead: -time.Hour}, time.Minute, ""},
		{"one is the first to lead", true, waiting, lease{terms: []term{{"first", 300 * time.Millisecond, forEver}}}, 0, ""},
		{"another was killed long before", true, waiting, lease{terms: []term{dead}}, 0, "another holds the lease, but does not renew it"},
		{"another was killed long before, whose clock is ahead", true, waiting, lease{terms: []term{dead}, ahead: time.Hour}, 4 * time.Second, "another holds the lease, but does not renew it"},
		{"another is killed, and followed as late as can be", true, waiting, lease{terms: []term{killed, {"third", 7900 * time.Millisecond, forEver}}}, time.Minute, ""},
		{"another is killed, and nobody follows", true, waiting, lease{terms: []term{killed}}, 10 * time.Second, "another holds the lease, but does not renew it"},
		{"another gives it back, and is followed", true, waiting, lease{terms: []term{{"another", 0, forEver}, {"", 3900 * time.Millisecond, 0}, {"third", 4300 * time.Millisecond, forEver}}}, time.Minute, ""},
		{"another gives it back, and nobody follows", true, waiting, lease{terms: []term{killed, {"", 3 * time.Second, 0}}}, 4 * time.Second, "the lease has no holder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.lease.began = time.Now()
				check, again := ready(c.caches, &c.lease, c.elected), time.NewTicker(2*time.Second)
				for at := time.Duration(0); at <= c.last; at += 2 * time.Second {
					err := check(httptest.NewRequest("GET", "/readyz", nil))
					switch {
					case c.want == "" && err != nil:
						t.Fatalf("after %s: %v", at, err)
					case c.want != "" && at == c.last && (err == nil || !strings.Contains(err.Error(), c.want)):
						t.Errorf("after %s: %v, want %q", at, err, c.want)
					}
					<-again.C
				}
			})
		})
	}
}
