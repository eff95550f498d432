package bind

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var key = claimKey{Namespace: "ns", Name: "c"}

// who names what is enqueued, in order.
func (w *requests) who() []string {
	var names []string
	for key := range w.claims {
		names = append(names, "claim "+key.Name)
	}
	for name := range w.volumes {
		names = append(names, "volume "+name)
	}
	for name := range w.later {
		names = append(names, "volume "+name+" later")
	}
	slices.Sort(names)
	return names
}

func wantWoken(t *testing.T, when string, w requests, want ...string) {
	t.Helper()
	if got := w.who(); !slices.Equal(got, want) {
		t.Errorf("%s: woke %v, want %v", when, got, want)
	}
}

func version(v string) volumeWith {
	return func(p *corev1.PersistentVolume) { p.ResourceVersion = v }
}

func claimVersion(v string) claimWith {
	return func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = v }
}

func TestAFreeVolumeWakesOneClaim(t *testing.T) {
	b := newCache(false, deaf{})
	for i := range 3 {
		b.claimChanged(claimOf(fmt.Sprintf("%dGi", i+1), called("ns", fmt.Sprintf("c%d", i+1)), uid(types.UID(fmt.Sprint(i)))))
	}
	wantWoken(t, "a free volume", b.volumeChanged(volumeOf("a", "2Gi")), "claim c2")
	wantWoken(t, "another", b.volumeChanged(volumeOf("b", "2Gi")), "claim c1")
	wantWoken(t, "one more than there are claims for", b.volumeChanged(volumeOf("d", "2Gi")))
	wantWoken(t, "one for the largest", b.volumeChanged(volumeOf("e", "4Gi")), "claim c3")
}

func TestAnOfferThatIsNotNeededGoesToTheNext(t *testing.T) {
	b := newCache(false, deaf{})
	small, large := claimOf("1Gi", called("ns", "small"), uid("s")), claimOf("2Gi", called("ns", "large"), uid("l"))
	b.claimChanged(small)
	b.claimChanged(large)
	wantWoken(t, "a free volume", b.volumeChanged(volumeOf("a", "5Gi")), "claim large")
	wantWoken(t, "while it is being looked at", b.finishClaim(keyOf(large), nil))
	gone := *large
	gone.ResourceVersion = "2"
	wantWoken(t, "the claim goes", b.claimDeleted(&gone), "claim small")
}

func TestWhoIsTurnedAwayIsWokenLater(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("1Gi"))
	b.volumeChanged(volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumePending)))
	if v := b.readVolume("a"); v == nil {
		t.Fatal("the volume is not to be had")
	}
	if v, _ := b.readClaim(key); v != nil {
		t.Fatalf("the claim has got %+v while the volume is locked", v)
	}
	wantWoken(t, "letting go", b.unlockVolume("a", nil), "claim c")
}

func TestAWorkerThatFailsIsNotWokenAtOnce(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("1Gi"))
	b.claimChanged(claimOf("1Gi", called("ns", "other"), uid("o")))
	b.volumeChanged(volumeOf("a", "1Gi"))
	if v, _ := b.readClaim(key); v == nil || v.Chosen == nil {
		t.Fatalf("got %+v, want volume a", v)
	}
	wantWoken(t, "letting go of a free volume", b.unlockVolume("a", errBusy))
	wantWoken(t, "ending the claim's turn", b.finishClaim(key, nil))
	b.volumeChanged(volumeOf("b", "1Gi", to("c", "u"), in(corev1.VolumePending)))
	b.readVolume("b")
	wantWoken(t, "letting go of a volume", b.unlockVolume("b", errBusy))
}

func TestAVolumeThatItsClaimCannotUseDoesNotWakeItForEver(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("2Gi"))
	wantWoken(t, "seeing the volume", b.volumeChanged(volumeOf("a", "1Gi", to("c", "u"))), "claim c")
	wantWoken(t, "ending the claim's turn", b.finishClaim(key, nil))
}

func TestOldNewsIsNoNews(t *testing.T) {
	b := newCache(false, deaf{})
	b.volumeChanged(volumeOf("a", "1Gi", version("9"), in(corev1.VolumeReleased)))
	wantWoken(t, "an older version, though its text comes later", b.volumeChanged(volumeOf("a", "1Gi", version("10"))))
	written := volumeOf("a", "1Gi", version("11"), to("c", "u"))
	b.putWritten(nil, written)
	b.volumeChanged(volumeOf("a", "1Gi", version("10")))
	if b.volumes["a"] != written || b.free.has("a") {
		t.Error("an older version replaced the answer to our own write")
	}
	same := volumeOf("a", "1Gi", version("11"), to("c", "u"))
	wantWoken(t, "the event of our own write", b.volumeChanged(same))
	if b.volumes["a"] != same {
		t.Error("the cache keeps a copy beside that of the informers")
	}
}

func TestWhatIsGoneIsNotEnteredAgainByALateAnswer(t *testing.T) {
	b := newCache(false, deaf{})
	v, claim := volumeOf("a", "1Gi"), claimOf("1Gi")
	b.volumeChanged(v)
	b.claimChanged(claim)
	b.volumeDeleted(v)
	b.claimDeleted(claim)
	b.putWritten(claimOf("1Gi", claimVersion("5")), volumeOf("a", "1Gi", version("5")))
	b.confirmVolume("a", volumeOf("a", "1Gi", version("6")))
	b.confirmClaim(key, claimOf("1Gi", claimVersion("6")))
	if len(b.volumes)+len(b.claims)+len(b.free.positions)+len(b.waiting.positions)+len(b.unbound) > 0 {
		t.Errorf("the cache has volumes %v and claims %v", slices.Collect(maps.Keys(b.volumes)), slices.Collect(maps.Keys(b.claims)))
	}
}

func TestWhatIsInDoubtIsReadAnewBeforeItIsUsed(t *testing.T) {
	b := newCache(false, deaf{})
	b.claimChanged(claimOf("1Gi"))
	b.volumeChanged(volumeOf("a", "1Gi"))
	b.markUncertain(key, "a")
	if name, ok := b.uncertainClaim(key); !ok || name != "a" {
		t.Errorf("case 165: the claim is uncertain: %t, with %q", ok, name)
	}
	if b.free.has("a") {
		t.Error("case 165: a uncertain volume is offered to others")
	}
	wantWoken(t, "it turns out to be the claim's", b.confirmVolume("a", volumeOf("a", "1Gi", version("2"), to("c", "u"))), "claim c")
	if v, _ := b.readClaim(key); v == nil || v.Chosen == nil || v.Chosen.Name != "a" {
		t.Errorf("case 165: the claim gets %+v, want volume a", v)
	}
}

func TestAVolumeOfABoundClaimIsNotOfferedToOthers(t *testing.T) {
	b := booksOf(claimOf("1Gi", completed("a", corev1.ClaimBound)), claimOf("1Gi", called("ns", "other"), uid("o")), volumeOf("a", "1Gi"))
	if v, _ := b.readClaim(claimKey{Namespace: "ns", Name: "other"}); v.Chosen != nil {
		t.Error("section 1.9: the volume whose claimRef was taken off went to another claim")
	}
	b = booksOf(claimOf("1Gi", names("a")), claimOf("1Gi", called("ns", "other"), uid("o")), volumeOf("a", "1Gi"))
	if v, _ := b.readClaim(claimKey{Namespace: "ns", Name: "other"}); v.Chosen != nil {
		t.Error("case 161: the volume that a claim names went to another")
	}
	b = booksOf(claimOf("5Gi", names("a")), claimOf("1Gi", called("ns", "other"), uid("o")), volumeOf("a", "1Gi"))
	if v, _ := b.readClaim(claimKey{Namespace: "ns", Name: "other"}); v.Chosen == nil {
		t.Error("a volume too small for the claim that names it is kept from others")
	}
}

// accuser records the writes of other binders that it hears of.
type accuser struct {
	deaf
	heard *[]string
}

func (a accuser) foreign(w foreignWrite) { *a.heard = append(*a.heard, w.what+" "+w.phase) }

func failedFor(reason string) volumeWith {
	return func(v *corev1.PersistentVolume) {
		v.Status.Phase, v.Status.Reason = corev1.VolumeFailed, reason
	}
}

func TestAnotherBinderIsNoticedByThePhasesItWrites(t *testing.T) {
	bound := in(corev1.VolumeBound)
	for name, c := range map[string]struct {
		do   func(b *cache)
		want []string
	}{
		"case 159: a phase that nobody here has written": {func(b *cache) { b.volumeChanged(volumeOf("a", "1Gi", version("2"), bound)) }, []string{"volume Bound"}},
		"case 159: a claim's":                            {func(b *cache) { b.claimChanged(claimOf("1Gi", claimVersion("2"), completed("a", corev1.ClaimBound))) }, []string{"claim Bound"}},
		"our own, told before its answer": {func(b *cache) {
			b.lockVolume("a", claimKey{})
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), bound))
			b.putWritten(nil, volumeOf("a", "1Gi", version("2"), bound))
			b.unlockVolume("a", nil)
		}, nil},
		"our own, told after its answer": {func(b *cache) {
			b.lockVolume("a", claimKey{})
			b.putWritten(nil, volumeOf("a", "1Gi", version("2"), bound))
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), bound))
			b.unlockVolume("a", nil)
		}, nil},
		"another's while we were at work": {func(b *cache) {
			b.lockVolume("a", claimKey{})
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), bound))
			b.unlockVolume("a", errBusy)
		}, []string{"volume Bound"}},
		"one that may be ours": {func(b *cache) {
			b.lockVolume("a", claimKey{})
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), bound))
			b.markUncertain(claimKey{}, "a")
			b.unlockVolume("a", errBusy)
		}, nil},
		"a volume that Tarn's recycling has given up, and gives back": {func(b *cache) {
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), failedFor(recycleFailed)))
			b.volumeChanged(volumeOf("a", "1Gi", version("3"), in(corev1.VolumeReleased)))
		}, nil},
		"one that has failed for another reason and is Released": {func(b *cache) {
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), failedFor("VolumeFailedDelete")))
			b.volumeChanged(volumeOf("a", "1Gi", version("3"), in(corev1.VolumeReleased)))
		}, []string{"volume Released"}},
		"one that was given up and is Bound": {func(b *cache) {
			b.volumeChanged(volumeOf("a", "1Gi", version("2"), failedFor(recycleFailed)))
			b.volumeChanged(volumeOf("a", "1Gi", version("3"), bound))
		}, []string{"volume Bound"}},
		"a phase that deleters write": {func(b *cache) { b.volumeChanged(volumeOf("a", "1Gi", version("2"), in(corev1.VolumeFailed))) }, nil},
		"the first sight of one":      {func(b *cache) { b.volumeChanged(volumeOf("b", "1Gi", bound)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var heard []string
			b := newCache(false, accuser{heard: &heard})
			b.volumeChanged(volumeOf("a", "1Gi", in(corev1.VolumePending)))
			b.claimChanged(claimOf("1Gi"))
			c.do(b)
			if !slices.Equal(heard, c.want) {
				t.Errorf("heard %v, want %v", heard, c.want)
			}
		})
	}
}

func TestALostClaimThatGoesTakesNothingWithIt(t *testing.T) {
	lost := claimOf("1Gi", completed("a", corev1.ClaimLost))
	for name, c := range map[string]struct {
		then []*corev1.PersistentVolume
		// woken are the volumes enqueued then; none of them is written.
		woken []string
	}{
		"case 65: its volume is gone":                     {},
		"case 65: its volume is another's":                {then: []*corev1.PersistentVolume{volumeOf("a", "1Gi", to("other", "x"), in(corev1.VolumeBound))}},
		"case 65: its volume is Released by another":      {then: []*corev1.PersistentVolume{volumeOf("a", "1Gi", to("c", "former"), in(corev1.VolumeReleased))}},
		"case 65: its volume is kept for one of its name": {then: []*corev1.PersistentVolume{volumeOf("a", "1Gi", to("c", ""))}},
	} {
		t.Run(name, func(t *testing.T) {
			b := booksOf(claimOf("1Gi", called("ns", "other"), uid("x"), completed("a", corev1.ClaimBound)), lost)
			for _, v := range c.then {
				b.volumeChanged(v)
			}
			wantWoken(t, "the claim has gone", b.claimDeleted(lost), c.woken...)
			if d := syncVolume(b, "a", nil); len(d.writes)+len(d.events) > 0 {
				t.Errorf("wrote %v and posted %v, want nothing", d.writes, d.events)
			}
		})
	}
}
