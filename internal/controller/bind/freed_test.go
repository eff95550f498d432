package bind

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The answer to a write may arrive before or after the watch event.
func TestAClaimIsWokenWhenTheVolumeItNamesIsFreed(t *testing.T) {
	for name, c := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		watch bool
	}{
		"one that waits, the answer first":   {claim: otherClaim(names("a"))},
		"one that waits, the watch first":    {claim: otherClaim(names("a")), watch: true},
		"one that is lost, the answer first": {claim: otherClaim(completed("a", corev1.ClaimLost))},
		"one that is lost, the watch first":  {claim: otherClaim(completed("a", corev1.ClaimLost)), watch: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := booksOf(claimOf("1Gi", completed("b", corev1.ClaimBound)), c.claim,
				volumeOf("b", "1Gi", to("c", "u"), in(corev1.VolumeBound)),
				volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound), marked(bbc), policy(corev1.PersistentVolumeReclaimRetain)))
			view := b.readVolume("a")
			var freed *corev1.PersistentVolume
			for _, a := range planVolume(view).Actions {
				if write, ok := a.(WriteVolume); ok {
					freed = with(write.Volume, version("2"))
				}
			}
			if freed == nil || freed.Spec.ClaimRef != nil {
				t.Fatalf("case 57: the volume's worker leaves %+v", freed)
			}
			if c.watch {
				b.volumeChanged(freed)
			}
			b.putWritten(nil, freed)
			wantWoken(t, "case 57: the worker lets go", b.unlockVolume("a", nil), "claim d")
		})
	}
}

func TestAVolumeOfferedToAClaimThatChoosesAnotherForEverIsOfferedOn(t *testing.T) {
	b := booksOf(claimOf("2Gi"), otherClaim(), volumeOf("reserved", "2Gi", to("c", "")))
	turn := func() (woken []string) {
		v, _ := b.readClaim(key)
		if v == nil || v.Chosen == nil || v.Chosen.Name != "reserved" {
			t.Fatalf("the claim that asks for most looks at %+v", v)
		}
		w, end := b.unlockVolume("reserved", errRefused), b.finishClaim(key, errRefused)
		return append(w.who(), end.who()...)
	}
	turn()
	wantWoken(t, "a free volume comes", b.volumeChanged(volumeOf("a", "5Gi")), "claim c")
	if woken := turn(); !slices.Equal(woken, []string{"claim d"}) {
		t.Errorf("that the first is refused its own volume again wakes %v, want the other", woken)
	}
	wantChosen(t, "its look", b, other, "a")
}

func TestClaimsThatNameAVolumeTheyCannotHaveKeepItFromNobody(t *testing.T) {
	b := newCache(false, deaf{})
	for i := range 100 {
		b.claimChanged(claimOf("2Gi", called("ns", fmt.Sprint("large-", i)), uid(types.UID(fmt.Sprint(i))), names("a")))
	}
	b.volumeChanged(volumeOf("a", "1Gi"))
	if n := len(b.preboundTo); n != 0 {
		t.Errorf("%d volumes are about to be taken, want none", n)
	}
	wantWoken(t, "one that asks for less and names it", b.claimChanged(otherClaim(names("a"))), "claim d")
	if b.free.has("a") {
		t.Error("a volume that a claim is about to take is offered to others")
	}
	wantWoken(t, "that goes", b.claimDeleted(otherClaim(names("a"))))
	if len(b.preboundTo) != 0 || !b.free.has("a") {
		t.Errorf("about to be taken are %v, and the volume is not offered", b.preboundTo)
	}
	wantWoken(t, "one that names none", b.claimChanged(claimOf("1Gi")), "claim c")
	wantChosen(t, "its look", b, key, "a")
}

// A webhook may undo what is written to a claim. Then the claim always needs another write.
func TestAClaimThatHasItsVolumeIsNotLookedAtAgainWithoutNews(t *testing.T) {
	for name, c := range map[string]struct {
		volume *corev1.PersistentVolume
		want   []string
	}{
		"it has it":            {volume: volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound))},
		"it was taken from it": {volume: volumeOf("a", "1Gi", in(corev1.VolumeAvailable)), want: []string{"claim c"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := booksOf(claimOf("1Gi", completed("a", corev1.ClaimPending)), c.volume)
			wantWoken(t, "its turn ends", b.finishClaim(key, nil), c.want...)
		})
	}
}

// A webhook may reject what the binder writes. The user who waits must learn that.
func TestThatTheAPIServerRefusesAWriteIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		given []any
		err   error
		want  []string
	}{
		"of the volume":                 {given: []any{claimOf("1Gi"), volumeOf("a", "1Gi")}, err: errRefused, want: []string{reasonFailedBinding}},
		"of the claim for a driver":     {given: []any{claimOf("1Gi", ofClass("gold")), classOf("gold")}, err: errRefused, want: []string{reasonProvisionFailed}},
		"for now":                       {given: []any{claimOf("1Gi"), volumeOf("a", "1Gi")}, err: errBusy},
		"not, and a driver can be told": {given: []any{claimOf("1Gi", ofClass("gold")), classOf("gold")}, want: []string{reasonProvisioning}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMeasured(t)
			for _, o := range c.given {
				switch o := o.(type) {
				case *corev1.PersistentVolumeClaim:
					m.cache.claimChanged(m.server.putClaim(o))
				case *corev1.PersistentVolume:
					m.cache.volumeChanged(m.server.putVolume(o))
				case *storagev1.StorageClass:
					m.cache.classChanged(o)
				}
			}
			if c.err != nil {
				m.instead[1] = c.err
			}
			_, err := claims{m.reconciler}.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			if (err != nil) != (c.err != nil) {
				t.Fatal(err)
			}
			m.time.SetTime(noon.Add(restTime))
			var told []string
			for s, _, more := m.events.next(); more; s, _, more = m.events.next() {
				told = append(told, s.post.Reason)
			}
			if !slices.Equal(told, c.want) {
				t.Errorf("told is %v, want %v", told, c.want)
			}
		})
	}
}
