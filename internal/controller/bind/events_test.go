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
	// Each Warning goes before the Normal ones of its minute, which rest first.
	want := []string{reasonProvisionFailed, reasonProvisioning, reasonProvisioning, reasonProvisioning, reasonProvisionFailed, reasonProvisioning}
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
	clock := testclock.NewFakePassiveClock(noon)
	p := newPoster(n, clock, func(runtime.Object) bool { return false })
	for i := range 200 {
		p.post(pair{claim: claimOf("1Gi", uid(types.UID(fmt.Sprint("claim-", i))))}, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"})
	}
	clock.SetTime(noon.Add(restTime))
	began := time.Now()
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
	clock := testclock.NewFakePassiveClock(noon)
	p := newPoster(n, clock, b.isOver)
	on := pair{claim: claimOf("1Gi")}
	p.post(on, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"})
	p.post(on, Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonLost, Note: "lost"})
	clock.SetTime(noon.Add(restTime))
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.posted, []string{reasonLost}) {
		t.Errorf("posted %v, want that the claim is lost alone: it waits for nothing any more", n.posted)
	}
}

// A claim that is bound while its Event rests costs none; a Warning waits for nothing.
func TestANormalEventRestsBeforeItIsPostedAndAWarningDoesNot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n := &notes{enough: func(posted int) {
		if posted == 2 {
			cancel()
		}
	}}
	clock := testclock.NewFakePassiveClock(noon)
	waits, soonBound := claimOf("1Gi"), claimOf("1Gi", uid("soon"))
	p := newPoster(n, clock, func(regarding runtime.Object) bool { return regarding == soonBound && clock.Now().After(noon) })
	var rests []time.Duration
	p.after = func(pause time.Duration) <-chan time.Time {
		rests = append(rests, pause)
		clock.SetTime(clock.Now().Add(pause))
		passed := make(chan time.Time)
		close(passed)
		return passed
	}
	p.post(pair{claim: soonBound}, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonFirstConsumer, Note: "waiting"})
	p.post(pair{claim: waits}, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"})
	p.post(pair{claim: waits}, Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonProvisionFailed, Note: "no class"})
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if want := []string{reasonProvisionFailed, reasonProvisioning}; !slices.Equal(n.posted, want) {
		t.Errorf("posted %v, want %v: the other claim is bound by then", n.posted, want)
	}
	if want := []time.Duration{restTime}; !slices.Equal(rests, want) {
		t.Errorf("rested %v, want %v", rests, want)
	}
}

func TestWhatChangesAllTheTimeIsToldWhenTheFirstHasRested(t *testing.T) {
	clock := testclock.NewFakePassiveClock(noon)
	p := newPoster(&notes{}, clock, func(runtime.Object) bool { return false })
	claim := pair{claim: claimOf("1Gi")}
	for _, note := range []string{"waiting for pod a", "waiting for pod a, b", "waiting for pod a, b, c"} {
		p.post(claim, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonPodScheduled, Note: note})
		clock.SetTime(clock.Now().Add(restTime / 4))
	}
	clock.SetTime(noon.Add(restTime))
	if s, _, ok := p.next(); !ok || s.post.Note != "waiting for pod a, b, c" {
		t.Errorf("next is %q (%t), want the last note, in the first one's time", s.post.Note, ok)
	}
	if s, _, ok := p.next(); ok {
		t.Errorf("then comes %q, want no more", s.post.Note)
	}
}

func TestNothingIsKeptOfWhatWasSaidAboutABoundClaim(t *testing.T) {
	waiting := Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"}
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	clock := testclock.NewFakePassiveClock(noon)
	r := &reconciler{clock: clock, metrics: m}
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
	clock.SetTime(noon.Add(restTime))
	if err := r.poster.Start(ctx); err != nil {
		t.Fatal(err)
	}
	said("what was late has been dropped", 0)
}
