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

var (
	waitingPost = Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonProvisioning, Note: "waiting"}
	failedPost  = Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonProvisionFailed, Note: "no class"}
	lostPost    = Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonLost, Note: "lost"}
)

func stillSo(runtime.Object) bool { return false }

// posts returns what a poster posts now and after the rest time of the waiting Events.
func posts(p *eventQueue, clock *testclock.FakePassiveClock) []string {
	var notes []string
	for {
		s, pause, ok := p.next()
		switch {
		case ok:
			notes = append(notes, s.post.Note)
		case pause > 0:
			clock.SetTime(clock.Now().Add(pause))
		default:
			return notes
		}
	}
}

// claimsOf returns claims that differ only in their UIDs.
func claimsOf(count int) []pair {
	claims := make([]pair, count)
	for i := range claims {
		claims[i].claim = claimOf("1Gi", uid(types.UID(fmt.Sprint("claim-", i))))
	}
	return claims
}

// Case 164.
func TestEventsArePostedWhenTheyChange(t *testing.T) {
	on, another := pair{claim: claimOf("1Gi")}, pair{claim: claimOf("1Gi", uid("another"))}
	clock := testclock.NewFakePassiveClock(noon)
	p := newEventQueue(&notes{}, clock, stillSo)
	for range 100 {
		p.post(on, waitingPost)
		p.post(on, failedPost)
	}
	p.post(another, waitingPost)
	for _, step := range []struct {
		after time.Duration
		says  []Post
		want  []string
	}{
		// A Warning precedes the Normal Events, which rest first.
		{want: []string{"no class", "waiting", "waiting"}},
		{after: changeAfter - restTime - 1, says: []Post{waitingPost, failedPost}},
		{after: repeatAfter, says: []Post{waitingPost}, want: []string{"waiting"}},
		{after: repeatAfter - 1, says: []Post{waitingPost}},
		{says: []Post{failedPost}, want: []string{"no class"}},
		{says: []Post{waitingPost, failedPost}, want: []string{"waiting"}},
		{says: []Post{failedPost}},
		{after: changeAfter, says: []Post{waitingPost, failedPost}, want: []string{"no class"}},
	} {
		clock.SetTime(clock.Now().Add(step.after))
		for _, post := range step.says {
			p.post(on, post)
		}
		if got := posts(p, clock); !slices.Equal(got, step.want) {
			t.Errorf("case 164: %v after what was before, %v are said: posted %q, want %q", step.after, step.says, got, step.want)
		}
	}
}

// At 20 a second, Events about 50,000 waiting claims take longer than the time until each is
// reconciled again.
func TestNoMoreEventsWaitThanThereAreThingsToTell(t *testing.T) {
	const perRound = 100
	clock := testclock.NewFakePassiveClock(noon)
	p := newEventQueue(&notes{}, clock, stillSo)
	claims := claimsOf(3 * perRound)
	told := map[types.UID]time.Time{}
	var posted, early int
	next := func() bool {
		s, _, ok := p.next()
		if !ok {
			return false
		}
		posted++
		if before, ok := told[s.uid]; ok && clock.Now().Sub(before) < repeatAfter {
			early++
		}
		told[s.uid] = clock.Now()
		return true
	}
	for range 10 {
		for _, c := range claims {
			p.post(c, waitingPost)
		}
		clock.SetTime(clock.Now().Add(repeatAfter - time.Second))
		for range perRound {
			next()
		}
	}
	if posted != 10*perRound || len(told) != len(claims) {
		t.Errorf("posted %d about %d claims, want %d about each of %d in turn", posted, len(told), 10*perRound, len(claims))
	}
	posted = 0
	for next() {
		posted++
	}
	if posted > len(claims) {
		t.Errorf("%d Events still waited, want at most one about each of %d claims", posted, len(claims))
	}
	if early > 0 {
		t.Errorf("%d Events were posted again within %v, want none", early, repeatAfter)
	}
}

func TestAWarningGoesBeforeAllNormalEventsThatWait(t *testing.T) {
	clock := testclock.NewFakePassiveClock(noon)
	p := newEventQueue(&notes{}, clock, stillSo)
	for _, c := range claimsOf(1000) {
		p.post(c, waitingPost)
	}
	clock.SetTime(noon.Add(time.Hour))
	p.next()
	p.post(pair{claim: claimOf("1Gi")}, lostPost)
	if got := posts(p, clock); len(got) != 1000 || got[0] != "lost" {
		t.Errorf("of %d Events %q is posted first, want that a claim is lost, and 999 that wait after it", len(got), got[0])
	}
}

func TestAnEventThatIsLateTellsWhatIsSoNow(t *testing.T) {
	saying := func(post Post, note string) Post {
		post.Note = note
		return post
	}
	unfit := Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonFailedBinding, Note: "none fits"}
	taken := Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: reasonFailedBinding, Note: "taken"}
	for _, c := range []struct {
		name string
		told []Post // earlier, and posted
		then time.Duration
		says []Post // now, each long after the previous one is due
		want []string
	}{
		{name: "a Normal one", says: []Post{saying(waitingPost, "a"), saying(waitingPost, "b")}, want: []string{"b", "other"}},
		{name: "a Warning", says: []Post{saying(failedPost, "a"), saying(failedPost, "b")}, want: []string{"b", "other"}},
		{name: "the same again", says: []Post{waitingPost, waitingPost}, want: []string{"waiting", "other"}},
		{name: "it has become a Warning", says: []Post{unfit, taken}, want: []string{"taken", "other"}},
		{name: "it is a Warning no more", says: []Post{taken, unfit}, want: []string{"other", "none fits"}},
		{name: "as it was told a moment ago", told: []Post{unfit}, says: []Post{taken, unfit}, want: []string{"other"}},
		{name: "and of another reason", told: []Post{waitingPost}, says: []Post{failedPost, saying(waitingPost, "b"), waitingPost}, want: []string{"no class", "other"}},
		{name: "what it was before is so again", told: []Post{waitingPost}, then: changeAfter, says: []Post{unfit, waitingPost}, want: []string{"none fits", "other", "waiting"}},
	} {
		clock := testclock.NewFakePassiveClock(noon)
		p := newEventQueue(&notes{}, clock, stillSo)
		on := pair{claim: claimOf("1Gi")}
		for _, post := range c.told {
			p.post(on, post)
		}
		posts(p, clock)
		clock.SetTime(clock.Now().Add(c.then))
		for i, post := range c.says {
			p.post(on, post)
			if i == 0 {
				p.post(pair{claim: claimOf("1Gi", uid("other"))}, saying(waitingPost, "other"))
			}
			clock.SetTime(clock.Now().Add(2 * restTime))
		}
		if got := posts(p, clock); !slices.Equal(got, c.want) {
			t.Errorf("%s: posted %q, want %q", c.name, got, c.want)
		}
	}
}

// A claim's loss is posted when it happens, and never again.
func TestOnlyWarningsWaitAboutWhatIsForgotten(t *testing.T) {
	clock := testclock.NewFakePassiveClock(noon)
	p := newEventQueue(&notes{}, clock, stillSo)
	claims := claimsOf(10)
	for _, c := range claims {
		p.post(c, waitingPost)
	}
	p.post(claims[3], lostPost)
	p.next()
	otherwise := lostPost
	otherwise.Note = "lost its name"
	p.post(claims[3], otherwise)
	for _, c := range claims {
		p.forget(c.claim.UID)
	}
	if normals, objects := p.normals.Len(), len(p.sent); normals != 0 || objects != 1 {
		t.Errorf("%d Normal Events wait and %d objects are known, want none and the lost claim alone", normals, objects)
	}
	p.post(claims[3], lostPost)
	if got, want := posts(p, clock), []string{"lost"}; !slices.Equal(got, want) {
		t.Errorf("posted %q, want %q", got, want)
	}
	p.forget(claims[3].claim.UID)
	if len(p.sent) != 0 {
		t.Errorf("%d objects are still known, want none", len(p.sent))
	}
}

// The cost of one post does not grow with the number of waiting claims.
func BenchmarkPostWhileManyWait(b *testing.B) {
	for _, waiting := range []int{1000, 50000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			p := newEventQueue(&notes{}, testclock.NewFakePassiveClock(noon), stillSo)
			claims := claimsOf(waiting)
			for _, c := range claims {
				p.post(c, waitingPost)
			}
			for i := 0; b.Loop(); i++ {
				p.forget(claims[i%waiting].claim.UID)
				p.post(claims[i%waiting], waitingPost)
			}
		})
	}
}

// A burst is posted slowly: it uses the API server's capacity, which binding needs.
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
	p := newEventQueue(n, clock, stillSo)
	for _, c := range claimsOf(200) {
		p.post(c, waitingPost)
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
	p := newEventQueue(n, clock, b.settled)
	on := pair{claim: claimOf("1Gi")}
	p.post(on, waitingPost)
	p.post(on, lostPost)
	clock.SetTime(noon.Add(restTime))
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.posted, []string{reasonLost}) {
		t.Errorf("posted %v, want that the claim is lost alone: it waits for nothing any more", n.posted)
	}
}

// A claim that is bound while its Event rests costs no Event. A Warning never waits.
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
	p := newEventQueue(n, clock, func(regarding runtime.Object) bool { return regarding == soonBound && clock.Now().After(noon) })
	var rests []time.Duration
	p.after = func(pause time.Duration) <-chan time.Time {
		rests = append(rests, pause)
		clock.SetTime(clock.Now().Add(pause))
		passed := make(chan time.Time)
		close(passed)
		return passed
	}
	p.post(pair{claim: soonBound}, Post{On: OnClaim, Type: corev1.EventTypeNormal, Reason: reasonFirstConsumer, Note: "waiting"})
	p.post(pair{claim: waits}, waitingPost)
	p.post(pair{claim: waits}, failedPost)
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

// Events cost the API server as much as the writes that bind.
func TestNormalEventsWaitWhileManyClaimsAreOnTheirWayAndWarningsDoNot(t *testing.T) {
	clock := testclock.NewFakePassiveClock(noon)
	p := newEventQueue(&notes{}, clock, stillSo)
	busy := true
	p.busy = func() bool { return busy }
	claims := claimsOf(2)
	next := func(when string, want string) {
		t.Helper()
		s, pause, ok := p.next()
		switch {
		case ok != (want != "") || s.post.Reason != want:
			t.Errorf("%s: next is %q, want %q", when, s.post.Reason, want)
		case !ok && pause != restTime:
			t.Errorf("%s: it is looked at again after %s, want %s", when, pause, restTime)
		}
	}
	p.post(claims[0], waitingPost)
	clock.SetTime(noon.Add(restTime))
	next("many are on their way", "")
	p.post(claims[1], failedPost)
	next("a Warning comes", reasonProvisionFailed)
	next("it is posted", "")
	clock.SetTime(noon.Add(restTime + mostDelay - 1))
	next("many are on their way for nearly a minute", "")
	p.post(claims[1], waitingPost)
	busy = false
	next("few are", reasonProvisioning)
	busy = true
	clock.SetTime(clock.Now().Add(restTime))
	next("many are again", "")
	clock.SetTime(clock.Now().Add(mostDelay))
	next("they are for a minute", reasonProvisioning)
}

func TestWhatChangesAllTheTimeIsToldWhenTheFirstHasRested(t *testing.T) {
	clock := testclock.NewFakePassiveClock(noon)
	p := newEventQueue(&notes{}, clock, stillSo)
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
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	clock := testclock.NewFakePassiveClock(noon)
	r := &reconciler{clock: clock, metrics: m}
	b := newCache(false, r)
	n := &notes{}
	r.events = newEventQueue(n, r.clock, b.settled)
	said := func(when string, want int) {
		t.Helper()
		if got := len(r.events.sent); got != want {
			t.Errorf("%s: what was said about %d objects is kept, want %d", when, got, want)
		}
	}
	c := claimOf("1Gi")
	b.claimChanged(c)
	r.events.post(pair{claim: c}, waitingPost)
	said("a claim waits", 1)
	b.claimChanged(claimOf("1Gi", claimVersion("2"), completed("a", corev1.ClaimBound)))
	said("it is bound", 0)
	b.claimDeleted(c)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.enough = func(int) { cancel() }
	r.events.post(pair{claim: c}, waitingPost) // by a late worker
	r.events.post(pair{claim: claimOf("1Gi", uid("other"))}, lostPost)
	said("it is gone", 2)
	clock.SetTime(noon.Add(restTime))
	if err := r.events.Start(ctx); err != nil {
		t.Fatal(err)
	}
	said("what was late has been dropped", 0)
}
