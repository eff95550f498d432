package bind

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// runs is how many random histories each mode gets. A run takes about a millisecond.
var runs = flag.Int("random", 300, "how many random histories each mode of the binder's model is given")

// Lengths of a history, in steps.
const (
	restless   = 150   // for users, watches, and workers
	longestEnd = 20000 // until nothing is left to do, after users and errors stop
)

// modes are what a history has besides claims and volumes that are created and deleted.
var modes = []mode{
	{name: "plain"},
	{name: "unknown outcomes", unknown: true},
	{name: "busy", busy: true},
	{name: "refusals", refusals: true},
	{name: "labels", labels: true},
	{name: "default class", byDefault: true},
	{name: "classes", classes: true},
	{name: "everything", unknown: true, busy: true, refusals: true, labels: true, byDefault: true, classes: true},
}

type mode struct {
	name                                                string
	unknown, busy, refusals, labels, byDefault, classes bool
}

// TestRandomHistoriesEndInOrder plays users, two watches that lag independently and four workers,
// who take turns step by step. Then it lets everything come to rest. At the end no claim waits
// while a volume fits, no volume has two claims, and the cache holds nothing back.
func TestRandomHistoriesEndInOrder(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for seed := range *runs {
				s := newStory(m, int64(seed))
				if wrong := s.play(); len(wrong) > 0 {
					t.Fatalf("history %d: %s; its last steps:\n%s", seed, strings.Join(wrong, "; "), strings.Join(s.told[max(0, len(s.told)-40):], "\n"))
				}
			}
		})
	}
}

// job is one claim or volume to reconcile.
type job struct {
	claim  claimKey
	volume string
}

// story is one history: a server, the cache of its objects, and the queue between them.
type story struct {
	mode
	*server
	random  *rand.Rand
	cache   *cache
	queue   []job
	working []*turn
	again   map[job]bool // what was queued while in work
	calm    bool         // users and errors have stopped
	uids    int
	told    []string
}

func newStory(m mode, seed int64) *story {
	s := &story{mode: m, random: rand.New(rand.NewSource(seed)), cache: newCache(false, deaf{}), again: map[job]bool{}}
	s.server = newServer(s.cache)
	s.cache.classChanged(classOf("wait", waits))
	if s.byDefault {
		s.cache.classChanged(classOf("gold", isDefault(0)))
	}
	return s
}

func (s *story) tell(format string, args ...any) {
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

// play plays a history to its end and says what is wrong with it.
func (s *story) play() []string {
	for range restless {
		s.step()
	}
	s.calm = true
	for range longestEnd {
		if !s.step() {
			return s.check()
		}
	}
	return []string{"it never comes to rest"}
}

// step does one of the possible next things, and says whether there was one.
func (s *story) step() bool {
	var next []func()
	for i := range s.lag {
		if len(s.lag[i]) > 0 {
			next = append(next, func() {
				event := s.lag[i][0]
				s.lag[i] = s.lag[i][1:]
				s.wake(event())
			})
		}
	}
	if len(s.queue) > 0 && len(s.working) < 4 {
		next = append(next, func() {
			s.working = append(s.working, &turn{story: s, job: s.queue[0]})
			s.queue = s.queue[1:]
		})
	}
	for _, w := range s.working {
		next = append(next, func() {
			if w.step() {
				s.end(w)
			}
		})
	}
	if !s.calm && (len(next) == 0 || s.random.Intn(4) == 0) {
		next = []func(){s.user}
	}
	if len(next) == 0 {
		return false
	}
	next[s.random.Intn(len(next))]()
	return true
}

func (s *story) wake(w requests) {
	// Sorted, so that a history is the same each time.
	for i := range population {
		if _, ok := w.claims[claimNamed(i)]; ok {
			s.add(job{claim: claimNamed(i)})
		}
		_, now := w.volumes[volumeNamed(i)]
		_, later := w.later[volumeNamed(i)]
		if now || later { // a pause is only a place in the queue
			s.add(job{volume: volumeNamed(i)})
		}
	}
}

// add queues a job as a work queue does: once, and not while it is in work.
func (s *story) add(j job) {
	switch {
	case slices.ContainsFunc(s.working, func(w *turn) bool { return w.job == j }):
		s.again[j] = true
	case !slices.Contains(s.queue, j):
		s.queue = append(s.queue, j)
	}
}

// end ends a turn and queues the job again if it failed or was queued meanwhile.
func (s *story) end(w *turn) {
	s.working = slices.DeleteFunc(s.working, func(o *turn) bool { return o == w })
	again := s.again[w.job]
	delete(s.again, w.job)
	// A plan with a problem is retried without end, so the history would never rest.
	if again || w.err != nil && !(s.calm && w.plan != nil && errors.Is(w.err, w.plan.Problem)) {
		s.add(w.job)
	}
	s.tell("  end of %v: %v", w.job, w.err)
}

// turn is a worker on one job. It does what the reconcilers do, in steps of one decision or one
// write.
type turn struct {
	*story
	job    job
	rounds int
	plan   *Plan
	done   int // actions of the plan carried out
	on     pair
	held   string
	err    error
}

// step does one step and says whether it was the last.
func (w *turn) step() bool {
	switch {
	case w.plan == nil && !w.look():
		return w.over(nil)
	case w.plan != nil && w.done < len(w.plan.Actions):
		w.done++
		if err := w.write(w.plan.Actions[w.done-1]); err != nil {
			return w.over(err)
		}
	case w.plan != nil && w.done == len(w.plan.Actions):
		w.done++
		return w.over(w.plan.Problem)
	}
	return false
}

// look gathers and plans, and says whether there is anything to do.
func (w *turn) look() bool {
	if w.job.volume != "" {
		return w.lookAtVolume()
	}
	if name, uncertain := w.cache.uncertainClaim(w.job.claim); uncertain {
		w.dispel(name)
		w.wake(w.cache.confirmClaim(w.job.claim, w.claims[w.job.claim]))
	}
	v, uncertain := w.cache.readClaim(w.job.claim)
	for ; uncertain != ""; v, uncertain = w.cache.readClaim(w.job.claim) {
		w.dispel(uncertain)
	}
	if v == nil {
		return false
	}
	w.on = pair{claim: v.Claim, volume: v.volume()}
	if w.on.volume != nil {
		w.held = w.on.volume.Name
	}
	if v.needsLiveRead() {
		name := max(v.Claim.Spec.VolumeName, w.held)
		live := w.volumes[name]
		if (live == nil) != (w.on.volume == nil) || live != nil && !sameVersion(live, w.on.volume) {
			w.wake(w.cache.confirmVolume(name, live))
			return false
		}
		v.Asked = true
	}
	p := planClaim(v)
	w.plan = &p
	w.tell("%v looks: volume %q, %d actions, %v", w.job, w.held, len(p.Actions), p.Problem)
	return true
}

func (w *turn) lookAtVolume() bool {
	w.dispel(w.job.volume)
	v := w.cache.readVolume(w.job.volume)
	if v == nil {
		return false
	}
	w.held = w.job.volume
	if planVolume(v).NeedsLiveRead {
		key, _ := refKey(v.Volume)
		v.Claim, v.Asked = w.claims[key], true
	}
	p := planVolume(v)
	w.plan, w.on = &p, pair{volume: v.Volume, claim: v.Claim}
	return true
}

func (w *turn) dispel(name string) {
	if w.cache.isUncertain(name) {
		w.wake(w.cache.confirmVolume(name, w.volumes[name]))
	}
}

// write carries out an action, and stores the answer in the cache unless it is lost.
func (w *turn) write(a Action) error {
	before, lost := w.trouble()
	if before != nil {
		return &writeError{what: "it", err: before}
	}
	var v *corev1.PersistentVolume
	var c *corev1.PersistentVolumeClaim
	var err error
	switch a := a.(type) {
	case WriteVolume:
		v, err = w.updateVolume(a.Volume, w.on.volume.ResourceVersion, false)
	case WriteVolumeStatus:
		v, err = w.updateVolume(a.Volume, w.on.volume.ResourceVersion, true)
	case WriteClaim:
		c, err = w.updateClaim(a.Claim, w.on.claim.ResourceVersion, false)
	case WriteClaimStatus:
		c, err = w.updateClaim(a.onto(w.on.claim), w.on.claim.ResourceVersion, true)
	case EnqueueClaim:
		w.add(job{claim: a.Key})
		return nil
	default:
		return nil
	}
	w.tell("  %v writes %T: %v", w.job, a, err)
	switch {
	case err != nil:
		return &writeError{what: "it", err: err}
	case lost:
		return &writeError{what: "it", err: errors.New("done, and nobody was told")}
	case v != nil:
		w.on.volume = v
	case c != nil:
		w.on.claim = c
	}
	w.cache.putWritten(c, v)
	return nil
}

// trouble returns the error that prevents a write, and whether the answer to a successful one is
// lost.
func (w *turn) trouble() (before error, lost bool) {
	if w.calm {
		return nil, false
	}
	switch luck := w.random.Intn(100); {
	case w.busy && luck < 5:
		return errBusy, false
	case w.unknown && luck < 10:
		return errors.New("never arrived"), false
	case w.unknown && luck < 15:
		return nil, true
	case w.refusals && luck < 25:
		return apierrors.NewForbidden(resourceName, "it", errors.New("a webhook says no")), false
	}
	return nil, false
}

// over ends a round and says whether it was the last.
func (w *turn) over(err error) bool {
	w.err = err
	if write := (*writeError)(nil); errors.As(err, &write) && !isRejected(err) {
		w.cache.markUncertain(w.job.claim, w.held)
	}
	if w.held != "" {
		w.wake(w.cache.unlockVolume(w.held, err))
	}
	again := isStale(err) || w.job.volume == "" && err == nil && w.plan != nil && w.plan.Again
	if w.rounds++; again && w.rounds < rounds {
		w.plan, w.done, w.on, w.held = nil, 0, pair{}, ""
		return false
	}
	if w.job.volume == "" {
		w.wake(w.cache.finishClaim(w.job.claim, err))
	}
	return true
}
