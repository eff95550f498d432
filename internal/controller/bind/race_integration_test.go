//go:build integration

package bind

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"tarn.dev/tarn/internal/testkit"
)

// atOnce creates objects concurrently.
func (w *world) atOnce(objects ...client.Object) {
	w.t.Helper()
	var all errgroup.Group
	for _, o := range objects {
		o.SetUID("")
		o.SetResourceVersion("")
		all.Go(func() error { return w.client.Create(w.ctx, o) })
	}
	w.must(all.Wait())
}

// without says in which way a claim is not a waiting one that names the given volume, or none if
// that is empty.
func (w *world) without(claim, volume string) string {
	c := read(w, claimOf("1Gi", called("default", claim)))
	if c == nil || c.Spec.VolumeName != volume || c.Status.Phase != corev1.ClaimPending || c.Annotations[bc] != "" {
		return fmt.Sprintf("claim %q is %+v, want it Pending and to name %q", claim, c, volume)
	}
	return ""
}

// has returns the only one of the claims that has a volume. It waits until the others are Pending,
// name no volume and have an Event that says so.
func (w *world) has(number int, name string, claims map[string]*corev1.PersistentVolumeClaim) (winner string) {
	w.t.Helper()
	w.until(func() string {
		v := read(w, volumeOf(name, "1Gi"))
		if v.Spec.ClaimRef == nil {
			return fmt.Sprintf("case %d: nobody has volume %q", number, name)
		}
		winner = v.Spec.ClaimRef.Name
		return w.joined(winner, name)
	})
	for other, c := range claims {
		if other == winner {
			continue
		}
		w.until(func() string { return w.told(c.UID, reasonProvisionFailed) })
		for _, wrong := range []string{reasonLost, reasonMisbound} {
			if w.told(c.UID, wrong) == "" {
				w.t.Errorf("case %d: claim %q was told %s", number, other, wrong)
			}
		}
		if wrong := w.without(other, ""); wrong != "" {
			w.t.Errorf("case %d: beside claim %q, which has volume %q, %s", number, winner, name, wrong)
		}
	}
	return winner
}

// manyForOne creates many claims at once, whose workers race for one volume. The volume exists
// before, or is created at the same time.
func manyForOne(w *world, n string, with bool) {
	v := volumeOf(n, "1Gi", class(n), in(corev1.VolumePending))
	var objects []client.Object
	if with {
		objects = append(objects, v)
	} else {
		w.atOnce(v)
		w.until(func() string { return w.volumeIs(n, corev1.VolumeAvailable, "") })
	}
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range 8 {
		name := fmt.Sprintf("%s-%d", n, i)
		claims[name] = claimOf("1Gi", called("default", name), ofClass(n))
		objects = append(objects, claims[name])
	}
	w.atOnce(objects...)
	delete(claims, w.has(160, n, claims))
	w.volume(n+"-more", "1Gi", class(n), in(corev1.VolumePending))
	w.has(160, n+"-more", claims) // the first race cost it nothing
}

// namedAndFitting creates, several times, a claim that names a free volume and one that the volume
// fits at once. Either may get it.
func namedAndFitting(w *world, n string) {
	for i := range 8 {
		name := fmt.Sprintf("%s-%d", n, i)
		w.volume(name, "1Gi", class(name), in(corev1.VolumePending))
		w.until(func() string { return w.volumeIs(name, corev1.VolumeAvailable, "") })
		w.atOnce(claimOf("1Gi", called("default", name+"-fits"), ofClass(name)), claimOf("1Gi", called("default", name+"-named"), ofClass(name), names(name)))
		w.until(func() string {
			ref := read(w, volumeOf(name, "1Gi")).Spec.ClaimRef
			if ref == nil {
				return fmt.Sprintf("case 161: nobody has volume %q", name)
			}
			if wrong := w.joined(ref.Name, name); wrong != "" {
				return "case 161: " + wrong
			}
			if ref.Name == name+"-named" {
				return w.without(name+"-fits", "")
			}
			return w.without(name+"-named", name)
		})
	}
}

func TestCase161AClaimComesWhileItsVolumeIsBeingJoinedToAnother(t *testing.T) {
	t.Parallel()
	config := testkit.OwnAPIServer(t)
	for _, c := range []struct {
		name   string
		writes int
		// first and second build a claim of the given name, for a volume whose class has its own
		// name.
		first, second func(claim, volume string) *corev1.PersistentVolumeClaim
		// waits is the volume that the second claim names while it waits; said is the reason of its
		// Event.
		waits func(volume string) string
		said  string
	}{
		{"that names it", 4, fitting, naming, func(volume string) string { return volume }, reasonFailedBinding},
		{"that it fits", 3, naming, fitting, func(string) string { return "" }, reasonProvisionFailed},
	} {
		for nth := 1; nth <= c.writes; nth++ {
			t.Run(fmt.Sprintf("a claim %s, at write %d", c.name, nth), func(t *testing.T) {
				w, name := newWorld(t, config), fmt.Sprintf("meanwhile-%d-%d", c.writes, nth)
				first, second := c.first(name+"-first", name), c.second(name+"-second", name)
				w.volume(name, "1Gi", class(name))
				w.atOnce(first)
				tampered, hit := tamper(w.config, nth, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
					if err := w.client.Create(w.ctx, second); err != nil {
						return nil, err
					}
					return next.RoundTrip(r)
				})
				w.ledger = &ledger{}
				stop := w.wantHit(161, nth, hit, w.start(tampered, nil, Options{}))
				w.until(func() string { return w.joined(first.Name, name) })
				w.until(func() string { return w.told(second.UID, c.said) })
				stop()
				if wrong := w.joined(first.Name, name) + w.without(second.Name, c.waits(name)); wrong != "" || w.ledger.lost() {
					t.Errorf("case 161: %s; that a claim was called Lost: %t", wrong, w.ledger.lost())
				}
			})
		}
	}
}

func fitting(claim, volume string) *corev1.PersistentVolumeClaim {
	return claimOf("1Gi", called("default", claim), uid(""), unversioned, ofClass(volume))
}

func naming(claim, volume string) *corev1.PersistentVolumeClaim {
	return claimOf("1Gi", called("default", claim), uid(""), unversioned, ofClass(volume), names(volume))
}

func unversioned(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = "" }

// No other request of this process fails meanwhile, as parallel cases run later.
func TestCase52AClaimWhoseVolumeIsAnothersIsTriedAgainWithPausesThatGrow(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t))
	retries := func() float64 { return counted(t, ctrlmetrics.Registry, "tarn_bind_retries_total")["claim"] }
	w.boundPair("taken")
	c := w.claim("wants", "1Gi", ofClass(""), names("taken"), noted(bbc))
	before := retries()
	killer := testkit.NewKiller(0)
	stop := w.start(killer.Wrap(w.config), nil, Options{})
	var tried float64
	tries := func(least float64) func() string {
		return func() string {
			if tried = retries() - before; tried < least {
				return fmt.Sprintf("case 52: the claim was tried %v times, want %v", tried, least)
			}
			return ""
		}
	}
	w.until(tries(1))
	begun, first := time.Now(), int(tried)
	w.until(tries(tried + 5))
	took, least := time.Since(begun), time.Duration(0)
	for i := first; i < first+4; i++ { // the first is 5 ms, and each doubles; the one running at the start may be over
		least += 5 * time.Millisecond << min(i, 12)
	}
	if took < least {
		t.Errorf("case 52: after %d tries five more took %s, want %s at the least", first, took, least)
	}
	w.until(func() string { return w.told(c.UID, reasonFailedBinding) })
	stop()
	if now := read(w, c); now.ResourceVersion != c.ResourceVersion || killer.Writes() > 0 {
		t.Errorf("case 52: the claim is %+v after %d writes, want none", now, killer.Writes())
	}
}
