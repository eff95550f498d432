package bind

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
)

// notes is an Event recorder that keeps the reasons.
type notes struct {
	posted []string
	enough func(int)
}

func (n *notes) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	n.posted = append(n.posted, reason)
	n.enough(len(n.posted))
}

// Case 164.
func TestEventsArePostedWhenTheyChange(t *testing.T) {
	waiting := Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"}
	failed := Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonProvisionFailed, Note: "no class"}
	on := pair{claim: claimOf("1Gi")}
	clock := testclock.NewFakePassiveClock(noon)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := &notes{}
	p := newPoster(n, clock, func(runtime.Object) bool { return false })
	p.post(on, waiting)
	for range 100 {
		p.post(on, waiting)
		p.post(on, failed)
	}
	p.post(pair{claim: claimOf("1Gi", uid("another"))}, waiting)
	clock.SetTime(noon.Add(repeatAfter))
	p.post(on, waiting)
	clock.SetTime(noon.Add(repeatAfter + changeAfter))
	p.post(on, waiting)
	p.post(on, failed)
	p.post(on, waiting)
	clock.SetTime(noon.Add(repeatAfter + 2*changeAfter))
	p.post(on, waiting)
	want := []string{reasonProvisioning, reasonProvisionFailed, reasonProvisioning, reasonProvisioning, reasonProvisionFailed, reasonProvisioning}
	n.enough = func(posted int) {
		if posted == len(want) {
			cancel()
		}
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.posted, want) {
		t.Errorf("case 164: posted %v, want %v", n.posted, want)
	}
}

// What comes at once is posted slowly: the time is that of the API server, taken from binding.
func TestManyEventsArePostedSlowly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const beyond = eventsPerSecond / 2
	n := &notes{enough: func(posted int) {
		if posted == eventsAtOnce+beyond {
			cancel()
		}
	}}
	began := time.Now()
	p := newPoster(n, testclock.NewFakePassiveClock(noon), func(runtime.Object) bool { return false })
	for i := range 200 {
		p.post(pair{claim: claimOf("1Gi", uid(types.UID(fmt.Sprint("claim-", i))))}, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"})
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(began), time.Second*beyond/eventsPerSecond; took < least {
		t.Errorf("%d Events were posted within %v, want no more than %d at once and %d a second", len(n.posted), took, eventsAtOnce, eventsPerSecond)
	}
}

func TestAnEventThatIsOverIsNotPosted(t *testing.T) {
	b := booksOf(claimOf("1Gi", completed("a", corev1.ClaimBound)))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := &notes{enough: func(int) { cancel() }}
	p := newPoster(n, testclock.NewFakePassiveClock(noon), b.isOver)
	on := pair{claim: claimOf("1Gi")}
	p.post(on, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"})
	p.post(on, Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonLost, Note: "lost"})
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.posted, []string{reasonLost}) {
		t.Errorf("posted %v, want that the claim is lost alone: it waits for nothing any more", n.posted)
	}
}

func TestNothingIsKeptOfWhatWasSaidAboutABoundClaim(t *testing.T) {
	waiting := Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"}
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	r := &reconciler{clock: testclock.NewFakePassiveClock(noon), metrics: m}
	b := newBooks(false, r)
	n := &notes{}
	r.poster = newPoster(n, r.clock, b.isOver)
	said := func(when string, want int) {
		t.Helper()
		if got := len(r.poster.said); got != want {
			t.Errorf("%s: what was said about %d objects is kept, want %d", when, got, want)
		}
	}
	c := claimOf("1Gi")
	b.sawClaim(c)
	r.poster.post(pair{claim: c}, waiting)
	said("a claim waits", 1)
	b.sawClaim(claimOf("1Gi", claimVersion("2"), completed("a", corev1.ClaimBound)))
	said("it is bound", 0)
	b.lostClaim(c)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.enough = func(int) { cancel() }
	r.poster.post(pair{claim: c}, waiting) // by a worker that is late
	r.poster.post(pair{claim: claimOf("1Gi", uid("other"))}, Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonLost})
	said("it is gone", 2)
	if err := r.poster.Start(ctx); err != nil {
		t.Fatal(err)
	}
	said("what was late has been dropped", 0)
}
