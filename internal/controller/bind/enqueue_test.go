package bind

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The errors with which a claim or a volume may be released.
var (
	errBusy    = apierrors.NewTooManyRequests("busy", 1)
	errRefused = apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "a", errors.New("a webhook says no"))
)

// other is a second claim, which requests 1Gi.
var other = claimKey{Namespace: "ns", Name: "d"}

func otherClaim(with ...claimWith) *corev1.PersistentVolumeClaim {
	return claimOf("1Gi", append(with, called("ns", "d"), uid("d"))...)
}

func wantChosen(t *testing.T, when string, b *cache, key claimKey, want string) {
	t.Helper()
	v, _ := b.readClaim(key)
	got := ""
	if v != nil && v.Chosen != nil {
		got = v.Chosen.Name
	}
	if got != want {
		t.Errorf("%s: claim %s gets volume %q, want %q", when, key.Name, got, want)
	}
}

// Case 165.
func TestAVolumeInDoubtIsReadAnewThoughItsClaimGoes(t *testing.T) {
	for name, goes := range map[string]func(b *cache, c *corev1.PersistentVolumeClaim) requests{
		"after it was let go": func(b *cache, c *corev1.PersistentVolumeClaim) requests {
			b.markUncertain(key, "a")
			b.unlockVolume("a", errBusy)
			b.finishClaim(key, errBusy)
			return b.claimDeleted(c)
		},
		"while it is held": func(b *cache, c *corev1.PersistentVolumeClaim) requests {
			b.markUncertain(key, "a")
			b.claimDeleted(c)
			return b.unlockVolume("a", errBusy)
		},
		"before the outcome is known": func(b *cache, c *corev1.PersistentVolumeClaim) requests {
			b.claimDeleted(c)
			b.markUncertain(key, "a")
			return b.unlockVolume("a", errBusy)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := newCache(false, deaf{}), claimOf("1Gi")
			b.claimChanged(c)
			b.volumeChanged(volumeOf("a", "1Gi"))
			b.readClaim(key)
			wantWoken(t, "case 165: the claim goes", goes(b, c), "volume a")
			b.claimChanged(otherClaim())
			wantWoken(t, "case 165: the volume is free after all", b.confirmVolume("a", volumeOf("a", "1Gi", version("2"))), "claim d")
			wantChosen(t, "case 165", b, other, "a")
		})
	}
}

func TestNewsOfAVolumeInDoubtHasItReadAnew(t *testing.T) {
	b := newCache(false, deaf{})
	b.volumeChanged(volumeOf("a", "1Gi"))
	b.markUncertain(claimKey{}, "a")
	wantWoken(t, "case 165: its label changes", b.volumeChanged(volumeOf("a", "1Gi", version("2"), labelled("app", "db"))), "volume a")
}

func TestAFreeVolumeThatChangesIsOfferedAnew(t *testing.T) {
	for name, c := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		then  volumeWith
	}{
		"a label":             {claimOf("1Gi", selecting(map[string]string{"app": "db"})), labelled("app", "db")},
		"a class":             {claimOf("1Gi", ofClass("gold")), class("gold")},
		"access modes":        {claimOf("1Gi", asking(corev1.ReadWriteMany)), access(corev1.ReadWriteMany)},
		"an attributes class": {claimOf("1Gi", attributes("fast")), tuned("fast")},
		"its size": {claimOf("2Gi"), func(v *corev1.PersistentVolume) {
			v.Spec.Capacity = volumeOf("", "2Gi").Spec.Capacity
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCache(false, deaf{})
			b.claimChanged(c.claim)
			wantWoken(t, "a volume that does not fit", b.volumeChanged(volumeOf("a", "1Gi")))
			wantWoken(t, "one that nothing of note has changed of", b.volumeChanged(volumeOf("a", "1Gi", version("2"), marked("touched"))))
			wantWoken(t, "one that fits", b.volumeChanged(volumeOf("a", "1Gi", version("3"), c.then)), "claim c")
			wantChosen(t, "its look", b, key, "a")
		})
	}
}

// counter counts the calls of a listener.
type counter struct {
	deaf
	free map[string]int
	uids *[]types.UID
}

func (c counter) freeVolumes(class string, more int) { c.free[class] += more }
func (c counter) gone(uid types.UID)                 { *c.uids = append(*c.uids, uid) }

func TestFreeVolumesAreCountedInTheClassTheyHave(t *testing.T) {
	count := counter{free: map[string]int{}, uids: &[]types.UID{}}
	b := newCache(false, count)
	b.volumeChanged(volumeOf("a", "1Gi", class("silver")))
	b.volumeChanged(volumeOf("a", "1Gi", version("2"), class("gold")))
	if want := map[string]int{"silver": 0, "gold": 1}; !maps.Equal(count.free, want) {
		t.Errorf("counted %v, want %v", count.free, want)
	}
	b.volumeDeleted(volumeOf("a", "1Gi", version("2"), class("gold")))
	if want := map[string]int{"silver": 0, "gold": 0}; !maps.Equal(count.free, want) {
		t.Errorf("with no volume, counted %v, want %v", count.free, want)
	}
}

func TestWhatIsMadeAnewWasGoneBetween(t *testing.T) {
	count := counter{free: map[string]int{}, uids: &[]types.UID{}}
	b := newCache(false, count)
	b.claimChanged(claimOf("1Gi"))
	b.claimChanged(claimOf("1Gi", uid("anew"), claimVersion("5")))
	b.volumeChanged(volumeOf("a", "1Gi"))
	b.volumeChanged(volumeOf("a", "1Gi", version("5"), func(v *corev1.PersistentVolume) { v.UID = "anew" }))
	if got := *count.uids; len(got) != 2 || got[0] != "u" || got[1] != "uid-a" {
		t.Errorf("told that %v are gone, want u and uid-a", got)
	}
}

func TestAnOfferThatFitsNoMoreGoesToTheNext(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("2Gi", selecting(map[string]string{"app": "db"})))
	b.claimChanged(otherClaim())
	wantWoken(t, "a volume for both", b.volumeChanged(volumeOf("a", "5Gi", labelled("app", "db"))), "claim c")
	wantWoken(t, "it loses its label", b.volumeChanged(volumeOf("a", "5Gi", version("2"))), "claim d")
	wantWoken(t, "one for the first alone", b.volumeChanged(volumeOf("b", "2Gi", labelled("app", "db"))), "claim c")
}

func TestAnOfferMadeBeforeTheClaimGotItsClassGoesToTheNext(t *testing.T) {
	b := newCache(false, deaf{})
	b.classChanged(classOf("std", isDefault(0)))
	b.claimChanged(claimOf("2Gi"))
	b.claimChanged(otherClaim(ofClass("")))
	b.readClaim(key) // the plan gives it the class
	wantWoken(t, "a volume without class", b.volumeChanged(volumeOf("a", "5Gi")), "claim c")
	b.putWritten(claimOf("2Gi", ofClass("std"), claimVersion("2")), nil)
	wantChosen(t, "the claim with its class", b, key, "")
	wantWoken(t, "ending its turn", b.finishClaim(key, nil), "claim d")
	wantWoken(t, "a volume of the class", b.volumeChanged(volumeOf("b", "5Gi", class("std"))), "claim c")
}

func TestAnOfferBesideOneThatFailedGoesToTheNext(t *testing.T) {
	for name, err := range map[string]error{"busy": errBusy, "refused": errRefused} {
		t.Run(name, func(t *testing.T) {
			b := newCache(false, deaf{})
			b.claimChanged(claimOf("2Gi"))
			b.claimChanged(otherClaim(selecting(map[string]string{"app": "db"})))
			wantWoken(t, "a volume for both", b.volumeChanged(volumeOf("x", "5Gi", labelled("app", "db"))), "claim c")
			wantWoken(t, "a better one for the first", b.volumeChanged(volumeOf("y", "3Gi")))
			wantChosen(t, "the first", b, key, "y")
			wantWoken(t, "it cannot have it now", b.unlockVolume("y", err), "claim d")
			wantWoken(t, "ending its turn", b.finishClaim(key, err))
			wantChosen(t, "the second", b, other, "x")
		})
	}
}

func TestAVolumeThatAClaimIsRefusedGoesToOthersInTurn(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("2Gi"))
	b.claimChanged(otherClaim())
	wantWoken(t, "a volume for both", b.volumeChanged(volumeOf("a", "5Gi")), "claim c")
	wantChosen(t, "the first", b, key, "a")
	wantWoken(t, "it is refused", b.unlockVolume("a", errRefused), "claim d")
	wantWoken(t, "ending its turn", b.finishClaim(key, errRefused))
	wantChosen(t, "the second", b, other, "a")
	wantWoken(t, "it is refused too, and the first still rests", b.unlockVolume("a", errRefused))
	wantWoken(t, "ending its turn", b.finishClaim(other, errRefused))
	wantChosen(t, "the first after its pause", b, key, "a")
	b.unlockVolume("a", errRefused)
	if _, resting := b.backingOff[key]; !resting {
		t.Error("the first is woken again without a pause")
	}
	b.claimDeleted(claimOf("2Gi"))
	b.readClaim(other)
	if len(b.backingOff) > 0 {
		t.Errorf("resting are %v, want nobody", b.backingOff)
	}
}

func TestABusyServerIsNotAskedForAnotherClaim(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("2Gi"))
	b.claimChanged(otherClaim())
	b.volumeChanged(volumeOf("a", "5Gi"))
	wantChosen(t, "the first", b, key, "a")
	wantWoken(t, "the server is busy", b.unlockVolume("a", errBusy))
}

func TestAVolumeThatGoesWhileItsClaimIsCompletedIsMissed(t *testing.T) {
	b := booksOf(claimOf("1Gi", names("a")), volumeOf("a", "1Gi"))
	b.readClaim(key)
	b.putWritten(nil, volumeOf("a", "1Gi", version("2"), to("c", "u"), in(corev1.VolumeBound)))
	wantWoken(t, "the volume is removed", b.volumeDeleted(volumeOf("a", "1Gi", version("3"))))
	b.putWritten(claimOf("1Gi", claimVersion("2"), completed("a", corev1.ClaimBound)), nil)
	wantWoken(t, "letting go", b.unlockVolume("a", nil))
	wantWoken(t, "cases 59 and 63: ending the claim's turn", b.finishClaim(key, nil), "claim c")
	wantWoken(t, "ending one that failed, which comes back by itself", b.finishClaim(key, errRefused))
}

func TestAPodWakesThoseOfItsClaimsThatWaitForOne(t *testing.T) {
	pod := podOf("p", "c", "d", "gone")
	pod.Namespace = "ns"
	inClass := func(more ...claimWith) (c, d *corev1.PersistentVolumeClaim) {
		more = append(more, ofClass("w"))
		return claimOf("1Gi", more...), otherClaim(more...)
	}
	for name, x := range map[string]struct {
		class     classWith
		with      []claimWith
		namespace string
		wantWoken []string
	}{
		"case 84: they wait":             {class: waits, wantWoken: []string{"claim c", "claim d"}},
		"case 84: others of those names": {class: waits, namespace: "another"},
		"they have been bound":           {class: waits, with: []claimWith{completed("a", corev1.ClaimBound)}},
		"they name a volume":             {class: waits, with: []claimWith{names("a")}},
		"their class binds at once":      {class: by("p.example")},
		"their class does not say when":  {class: modelessClass},
	} {
		t.Run(name, func(t *testing.T) {
			c, d := inClass(x.with...)
			b, seen := booksOf(classOf("w", x.class), c, d), pod.DeepCopy()
			if x.namespace != "" {
				seen.Namespace = x.namespace
			}
			wantWoken(t, "a pod", b.podChanged(seen), x.wantWoken...)
		})
	}
}

// Case 163.
func TestThousandsOfReleasedVolumesAreNobodysWork(t *testing.T) {
	b := booksOf(claimOf("1Gi"))
	for i := range 5000 {
		name := fmt.Sprintf("released-%d", i)
		w := b.volumeChanged(volumeOf(name, "1Gi", to(name, "gone"), in(corev1.VolumeReleased), policy(corev1.PersistentVolumeReclaimRetain)))
		if woken := w.who(); len(woken) > 0 || b.free.has(name) {
			t.Fatalf("case 163: volume %s has woken %v, and it is %t that it is looked through for claims", name, woken, b.free.has(name))
		}
	}
	wantWoken(t, "case 163: a volume that fits", b.volumeChanged(volumeOf("a", "1Gi")), "claim c")
	wantChosen(t, "case 163: the claim's look", b, key, "a")
}

func TestANewVolumeWaitsAMomentForTheClaimItIsReservedFor(t *testing.T) {
	pending := in(corev1.VolumePending)
	for name, c := range map[string]struct {
		knows  []any
		volume *corev1.PersistentVolume
		woken  []string
	}{
		"its claim is not there yet":             {volume: volumeOf("a", "1Gi", to("c", ""), pending), woken: []string{"volume a later"}},
		"its claim is there":                     {knows: []any{claimOf("1Gi")}, volume: volumeOf("a", "1Gi", to("c", ""), pending), woken: []string{"claim c"}},
		"its claim can never use it":             {knows: []any{claimOf("2Gi")}, volume: volumeOf("a", "1Gi", to("c", ""), pending), woken: []string{"claim c", "volume a"}},
		"it was Released and is reserved anew":   {volume: volumeOf("a", "1Gi", to("c", ""), in(corev1.VolumeReleased)), woken: []string{"volume a"}},
		"it is for anybody":                      {volume: volumeOf("a", "1Gi", pending), woken: []string{"volume a"}},
		"a uid says which claim, and it is gone": {volume: volumeOf("a", "1Gi", to("c", "gone"), pending), woken: []string{"volume a"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantWoken(t, "the volume is made", booksOf(c.knows...).volumeChanged(c.volume), c.woken...)
		})
	}
	b := booksOf(volumeOf("a", "1Gi", to("c", ""), pending))
	wantWoken(t, "the claim comes", b.claimChanged(claimOf("1Gi")), "claim c")
	wantChosen(t, "its look", b, key, "a")
	b = booksOf(volumeOf("a", "1Gi", to("c", ""), pending))
	if d := syncVolume(b, "a", nil); !slices.Equal(d.writes, []string{"volume/status"}) || d.volume.Status.Phase != corev1.VolumeAvailable {
		t.Errorf("no claim has come, and the volume's look writes %v and leaves it %s", d.writes, d.volume.Status.Phase)
	}
}

func TestAVolumeIsNotCalledAvailableBeforeItsClaimWhileManyClaimsAreOnTheirWay(t *testing.T) {
	of := func(age time.Duration, changes ...volumeWith) *corev1.PersistentVolume {
		v := volumeOf("a", "1Gi", append(changes, in(corev1.VolumePending))...)
		v.CreationTimestamp = metav1.NewTime(noon.Add(-age))
		return v
	}
	pending := of(time.Second, to("c", ""))
	for name, c := range map[string]struct {
		volume          *corev1.PersistentVolume
		active, waiting int
		before          time.Duration // the time since there were many, 0 for never
		pauses          bool
	}{
		"many are worked on":                  {volume: pending, active: manyClaims + 1, pauses: true},
		"many, of whom some wait":             {volume: pending, active: manyClaims, waiting: 1, pauses: true},
		"a few":                               {volume: pending, active: manyClaims},
		"a few, after many":                   {volume: pending, active: manyClaims, before: claimWait - 1, pauses: true},
		"a few, for a while":                  {volume: pending, active: manyClaims, before: claimWait},
		"many, but the volume is for anybody": {volume: of(time.Second), active: manyClaims + 1},
		"many, for a minute":                  {volume: of(time.Minute, to("c", "")), active: manyClaims + 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMeasured(t)
			m.server.putVolume(c.volume)
			m.cache.volumeChanged(m.server.volumes["a"])
			if c.before != 0 {
				m.claims = delays{waiting: manyClaims + 1}
				m.busy()
				m.time.SetTime(noon.Add(c.before))
			}
			m.claims = delays{waiting: c.waiting}
			m.active.Store(int32(c.active))
			got, err := volumes{m.reconciler}.Reconcile(t.Context(), reconcile.Request{NamespacedName: claimKey{Name: "a"}})
			if err != nil {
				t.Fatal(err)
			}
			want, phase := time.Duration(0), corev1.VolumeAvailable
			if c.pauses {
				want, phase = claimWait, corev1.VolumePending
			}
			if is := m.server.volumes["a"].Status.Phase; got.RequeueAfter != want || is != phase {
				t.Errorf("the volume is %s and looked at again after %s, want %s and %s", is, got.RequeueAfter, phase, want)
			}
		})
	}
}

// delays records what is added to a queue, and after what delay.
type delays struct {
	queue
	after map[string]time.Duration
	// waiting is the reported length of the queue.
	waiting int
}

func (d delays) Add(r reconcile.Request)                           { d.after[r.Name] = 0 }
func (d delays) Len() int                                          { return d.waiting }
func (d delays) AddAfter(r reconcile.Request, pause time.Duration) { d.after[r.Name] = pause }

func TestWhatIsToBeLookedAtLaterIsQueuedWithAPause(t *testing.T) {
	volumes, claims := delays{after: map[string]time.Duration{}}, delays{after: map[string]time.Duration{}}
	w := &watches{claims: claims, volumes: volumes}
	w.enqueue(requests{claims: set[claimKey]{key: {}}, volumes: set[string]{"a": {}}, later: set[string]{"b": {}}})
	if want := map[string]time.Duration{"c": 0}; !maps.Equal(claims.after, want) {
		t.Errorf("queued claims %v, want %v", claims.after, want)
	}
	if want := map[string]time.Duration{"a": 0, "b": claimWait}; !maps.Equal(volumes.after, want) {
		t.Errorf("queued volumes %v, want %v", volumes.after, want)
	}
}
