//go:build integration

package bind

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// count returns a configuration that counts requests other than watches and Events, and how many of
// them conflict.
func count(config *rest.Config) (counting *rest.Config, requests, conflicts *atomic.Int32) {
	requests, conflicts = &atomic.Int32{}, &atomic.Int32{}
	counting = rest.CopyConfig(config)
	counting.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if r.Method == http.MethodPut || r.Method == http.MethodGet && !strings.Contains(r.URL.RawQuery, "resourceVersion") && strings.Contains(r.URL.Path, "/persistentvolume") {
				requests.Add(1)
			}
			if err == nil && response.StatusCode == http.StatusConflict {
				conflicts.Add(1)
			}
			return response, err
		})
	})
	return counting, requests, conflicts
}

// change updates an object as another writer, and retries after conflicts.
func change[T client.Object](w *world, o T, by func(T)) {
	w.t.Helper()
	w.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		by(o)
		return w.client.Update(w.ctx, o)
	}))
}

// settleCases are what users and others do while a binder runs, and the result. All objects of a
// case are named after it.
var settleCases = []struct {
	name string
	run  func(w *world, n string)
}{
	{"case 31: a claim is bound when a volume comes", func(w *world, n string) {
		w.claim(n, "1Gi", ofClass(n))
		w.volume(n, "1Gi", class(n), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n, n) })
	}},
	{"case 27: all are bound while users write all of them", func(w *world, n string) {
		const each = 15
		name := func(i int) string { return fmt.Sprintf("%s-%d", n, i) }
		for i := range each {
			c := w.claim(name(i), "1Gi", ofClass(n))
			v := w.volume(name(i), "1Gi", class(n), in(corev1.VolumePending))
			for round := range 3 {
				touch := func(o client.Object) { o.SetLabels(map[string]string{"round": fmt.Sprint(round)}) }
				change(w, c, func(c *corev1.PersistentVolumeClaim) { touch(c) })
				change(w, v, func(v *corev1.PersistentVolume) { touch(v) })
			}
		}
		for i := range each {
			w.until(func() string { return w.joined(name(i), "") })
			if c := read(w, claimOf("1Gi", called("default", name(i)))); c.Labels["round"] != "2" {
				w.t.Errorf("claim %s has lost what its user wrote: %v", c.Name, c.Labels)
			}
		}
	}},
	{"case 43: a volume kept for one of many goes to that one", func(w *world, n string) {
		for i := range 10 {
			w.claim(fmt.Sprintf("%s-%d", n, i), "1Gi", ofClass(n))
		}
		w.volume(n, "1Gi", class(n), to(n+"-5", ""), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n+"-5", n) })
	}},
	{"section 1.6: a volume kept for a claim that does not come is Available, and the claim's still", func(w *world, n string) {
		w.volume(n, "1Gi", class(n), to(n, ""), in(corev1.VolumePending))
		w.until(func() string { return w.volumeIs(n, corev1.VolumeAvailable, n) })
		w.claim(n, "1Gi", ofClass(n))
		w.until(func() string { return w.joined(n, n) })
	}},
	{"case 45: a released volume is kept for the next claim of the name", func(w *world, n string) {
		w.remove(w.pair(n))
		w.until(func() string { return w.volumeIs(n, corev1.VolumeReleased, n) })
		w.claim(n, "1Gi", ofClass(n))
		change(w, volumeOf(n, "1Gi"), func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" })
		w.until(func() string { return w.joined(n, n) })
	}},
	{"case 46: a released volume is given to all", func(w *world, n string) {
		w.remove(w.pair(n))
		w.until(func() string { return w.volumeIs(n, corev1.VolumeReleased, n) })
		w.claim(n+"-next", "1Gi", ofClass(n))
		change(w, volumeOf(n, "1Gi"), func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil })
		w.until(func() string { return w.joined(n+"-next", n) })
	}},
	{"case 47: a claim that names a volume waits for it", func(w *world, n string) {
		w.claim(n, "1Gi", ofClass(n), names(n))
		w.volume(n, "1Gi", class(n), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n, n) })
	}},
	{"case 57: a user names a volume while another is matched", func(w *world, n string) {
		w.volume(n+"-a", "1Gi", class(n), in(corev1.VolumePending))
		w.volume(n+"-b", "2Gi", class(n), in(corev1.VolumePending))
		c := w.claim(n, "1Gi", ofClass(n))
		c.Spec.VolumeName = n + "-b"
		err := w.client.Update(w.ctx, c)
		w.until(func() string { return w.joined(n, "") })
		winner := read(w, c).Spec.VolumeName
		if err == nil && winner != n+"-b" {
			w.t.Errorf("the user's choice was taken and the claim has %q", winner)
		}
		other := map[string]string{n + "-a": n + "-b", n + "-b": n + "-a"}[winner]
		w.until(func() string { return w.volumeIs(other, corev1.VolumeAvailable, "") })
	}},
	{"cases 63 and 64: a claim loses its volume and has it back", func(w *world, n string) {
		c := w.pair(n)
		w.remove(volumeOf(n, "1Gi"))
		w.until(func() string {
			if c = read(w, c); c.Status.Phase != corev1.ClaimLost {
				return fmt.Sprintf("the claim is %s, want Lost", c.Status.Phase)
			}
			return ""
		})
		w.volume(n, "1Gi", class(n), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n, n) })
	}},
	{"case 65: a claim that is lost goes, and nothing with it", func(w *world, n string) {
		w.pair(n)
		c := w.claim(n+"-lost", "1Gi", ofClass(n), completed(n, corev1.ClaimBound))
		w.until(func() string {
			if c = read(w, c); c.Status.Phase != corev1.ClaimLost {
				return fmt.Sprintf("the claim is %s, want Lost", c.Status.Phase)
			}
			return ""
		})
		before := read(w, volumeOf(n, "1Gi"))
		w.remove(c)
		w.pair(n + "-next") // by now the binder has begun what it had to do about the claim
		if now := read(w, before); now.ResourceVersion != before.ResourceVersion {
			w.t.Errorf("the volume it named was written: it is %s and points at %+v", now.Status.Phase, now.Spec.ClaimRef)
		}
	}},
	{"case 78: of two that point at a claim the other is let go", func(w *world, n string) {
		c := w.claim(n, "1Gi", ofClass(n))
		w.volume(n+"-a", "1Gi", class(n), to(n, c.UID), marked(bbc), in(corev1.VolumePending))
		w.volume(n+"-b", "1Gi", class(n), to(n, c.UID), marked(bbc), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n, "") })
		first := read(w, c).Spec.VolumeName
		other := map[string]string{n + "-a": n + "-b", n + "-b": n + "-a"}[first]
		w.until(func() string { return w.volumeIs(other, corev1.VolumeAvailable, "") })
	}},
	{"cases 81 and 82: a claim made anew does not get the data of the old one", func(w *world, n string) {
		v := w.volume(n, "1Gi", class(n), in(corev1.VolumePending))
		made := v.Status.LastPhaseTransitionTime
		w.until(func() string { return w.volumeIs(n, corev1.VolumeAvailable, "") })
		available := read(w, v).Status.LastPhaseTransitionTime
		if made == nil || available == nil || available.Before(made) {
			w.t.Fatalf("the volume was made at %v and Available at %v, want both, in this order", made, available)
		}
		w.until(func() string { // timestamps have whole seconds
			if after := time.Since(available.Time); after < 2*time.Second {
				return fmt.Sprintf("the clock is %s after the time that the volume gives", after)
			}
			return ""
		})
		old := w.claim(n, "1Gi", ofClass(n))
		w.until(func() string { return w.joined(n, n) })
		w.remove(old)
		young := w.claim(n, "1Gi", ofClass(n))
		w.until(func() string { return w.volumeIs(n, corev1.VolumeReleased, n) })
		if young = read(w, young); young.Spec.VolumeName != "" {
			w.t.Errorf("the new claim has %q", young.Spec.VolumeName)
		}
		if released := read(w, v).Status.LastPhaseTransitionTime; released == nil || released.Sub(available.Time) <= time.Second {
			w.t.Errorf("the volume was Available at %v and Released at %v, want more than a second between them", available, released)
		}
	}},
	{"case 85: the scheduler chooses a volume", func(w *world, n string) {
		w.class(n, waits)
		c := w.claim(n, "1Gi", ofClass(n))
		v := w.volume(n, "1Gi", class(n), in(corev1.VolumePending))
		w.until(func() string { return w.volumeIs(n, corev1.VolumeAvailable, "") })
		change(w, v, func(v *corev1.PersistentVolume) {
			to(n, c.UID)(v)
			v.Spec.ClaimRef.Namespace = "default"
			marked(bbc)(v)
		})
		w.until(func() string { return w.joined(n, n) })
	}},
	{"case 114: the claim goes while its volume is made", func(w *world, n string) {
		c := w.claim(n, "1Gi", ofClass(n))
		w.remove(c)
		w.volume(n, "1Gi", class(n), to(n, c.UID), marked(volume.AnnProvisionedBy+"=p.example"), in(corev1.VolumePending))
		w.until(func() string { return w.volumeIs(n, corev1.VolumeReleased, n) })
	}},
	{"case 160: of many claims made at once one gets the volume that is there", func(w *world, n string) { manyForOne(w, n, false) }},
	{"case 160: and one that is made with them", func(w *world, n string) { manyForOne(w, n, true) }},
	{"case 161: a claim that names a volume and one that it fits", func(w *world, n string) {
		w.claim(n+"-named", "1Gi", ofClass(n), names(n))
		w.claim(n+"-fits", "1Gi", ofClass(n))
		w.volume(n, "1Gi", class(n), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n+"-named", n) })
		w.until(func() string { return w.without(n+"-fits", "") })
	}},
	{"case 161: both made at once for a volume that is there", namedAndFitting},
	{"case 162: a claim is made anew while the old one's volume is being destroyed", func(w *world, n string) {
		old := w.pair(n)
		w.remove(old)
		w.until(func() string { return w.volumeIs(n, corev1.VolumeReleased, n) })
		v := volumeOf(n, "1Gi")
		change(w, v, func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "test.tarn.dev/destroying") })
		w.must(w.client.Delete(w.ctx, v))
		c := w.claim(n, "1Gi", ofClass(n))
		w.pair(n + "-next") // by now the binder has begun what it had to do about the claim
		if c = read(w, c); c.Spec.VolumeName != "" || c.Status.Phase != corev1.ClaimPending {
			w.t.Errorf("the new claim is %s on %q", c.Status.Phase, c.Spec.VolumeName)
		}
		if v = read(w, v); v.Status.Phase != corev1.VolumeReleased || v.Spec.ClaimRef.UID != old.UID {
			w.t.Errorf("the volume is %s and points at %+v, want it Released and the old claim's", v.Status.Phase, v.Spec.ClaimRef)
		}
		w.remove(v)
		w.volume(n+"-new", "1Gi", class(n), in(corev1.VolumePending))
		w.until(func() string { return w.joined(n, n+"-new") })
	}},
	{"case 100 on a real API server, with its Event", func(w *world, n string) {
		w.class(n)
		c := w.claim(n, "1Gi", ofClass(n))
		w.until(func() string {
			if c = read(w, c); volume.ProvisionerOf(c) != n {
				return fmt.Sprintf("the claim's annotations are %v", c.Annotations)
			}
			return w.told(c.UID, reasonProvisioning)
		})
	}},
}

// pair makes the binder join a claim and a volume.
func (w *world) pair(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := w.claim(name, "1Gi", ofClass(name))
	w.volume(name, "1Gi", class(name), to(name, ""), in(corev1.VolumePending))
	w.until(func() string { return w.joined(name, name) })
	return c
}

// told is empty if an Event of a reason was posted about an object.
func (w *world) told(about types.UID, reason string) string {
	list := &corev1.EventList{}
	w.must(w.client.List(w.ctx, list, client.InNamespace("default")))
	for i := range list.Items {
		if list.Items[i].InvolvedObject.UID == about && list.Items[i].Reason == reason {
			return ""
		}
	}
	return "no Event " + reason
}

func TestClaimsAndVolumesSettleBesideTheirUsers(t *testing.T) {
	t.Parallel()
	config := testkit.OwnAPIServer(t)
	parent := newWorld(t, config)
	stop := parent.start(config, nil, Options{})
	t.Run("cases", func(t *testing.T) {
		for i, c := range settleCases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(newWorld(t, config), fmt.Sprintf("settle-%d", i))
			})
		}
	})
	stop()
}

func TestADefaultClassIsGivenWhenItComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	defer w.start(w.config, nil, Options{})()
	c := w.claim("early", "1Gi")
	w.until(func() string { return w.told(c.UID, reasonFailedBinding) })
	w.class("chosen", isDefault(0))
	w.until(func() string {
		if c = read(w, c); volume.ClassOf(c) != "chosen" || volume.ProvisionerOf(c) != "chosen" {
			return fmt.Sprintf("case 94: the claim has class %q and provisioner %q", volume.ClassOf(c), volume.ProvisionerOf(c))
		}
		return ""
	})
	late := w.claim("late", "1Gi")
	for ; late.Spec.StorageClassName == nil && w.ctx.Err() == nil; late = w.claim("late", "1Gi") { // admission learns of the class a moment late
		w.remove(late)
	}
	if volume.ClassOf(late) != "chosen" {
		t.Errorf("case 99: admission gave class %q, want the same as ours", volume.ClassOf(late))
	}
}

// Case 156.
func TestPairsMadeTogetherCauseNoConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	counting, requests, conflicts := count(w.config)
	stop := w.start(counting, nil, Options{})
	pairs := testkit.Many(500)
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(context.Background(), 3*testkit.Limit) // a thousand writes come first
	defer cancel()
	for i := range pairs {
		name := fmt.Sprintf("pair-%d", i)
		claim := func() { w.claim(name, "1Gi", ofClass("")) }
		vol := func() { w.volume(name, "1Gi", to(name, ""), in(corev1.VolumePending)) }
		if i%2 == 0 {
			claim, vol = vol, claim
		}
		claim()
		vol()
	}
	for i := range pairs {
		w.until(func() string { return w.joined(fmt.Sprintf("pair-%d", i), fmt.Sprintf("pair-%d", i)) })
	}
	stop()
	if got := conflicts.Load(); got != 0 {
		t.Errorf("case 156: %d conflicts between our own workers", got)
	}
	// A volume created a second before its claim has become Available, which is one more write.
	if got := int(requests.Load()); got < 4*pairs || got > 5*pairs {
		t.Errorf("case 156: took %d requests for %d pairs, want 4 or 5 each", got, pairs)
	}
}

// Cases 155 and 163.
func TestWhatIsSettledCostsNoRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	for i := range 20 {
		name := fmt.Sprintf("idle-%d", i)
		w.boundPair(name)
		w.claim(name+"-anew", "1Gi", ofClass("none"))
		w.volume(name+"-released", "1Gi", to(name+"-anew", "gone"), in(corev1.VolumeReleased), policy(corev1.PersistentVolumeReclaimRetain))
	}
	counting, requests, _ := count(w.config)
	stop := w.start(counting, nil, Options{})
	w.volume("last", "1Gi", class("idle"), in(corev1.VolumePending))
	w.claim("last", "1Gi", ofClass("idle"))
	w.until(func() string { return w.joined("last", "last") })
	stop()
	if got := requests.Load(); got < 4 || got > 5 {
		t.Errorf("cases 155, 163: took %d requests to bind one claim beside what is settled, want 4 or 5", got)
	}
}

func TestNothingIsProvisionedWhereThatIsOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	defer w.start(w.config, nil, Options{NoProvisioning: true})()
	w.class("off")
	c := w.claim("waits", "1Gi", ofClass("off"))
	w.claim("fits", "1Gi", ofClass("off"))
	w.volume("fits", "1Gi", class("off"), to("fits", ""), in(corev1.VolumePending))
	w.until(func() string { return w.joined("fits", "fits") })
	if c = read(w, c); len(c.Annotations) > 0 || c.Spec.VolumeName != "" {
		t.Errorf("case 112: the claim that nothing fits has annotations %v and volume %q, want neither", c.Annotations, c.Spec.VolumeName)
	}
}

func TestWhatIsBoundStaysSoWhenABinderStartsAndLooksAgainAndAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	var settled []client.Object
	for i := range 20 {
		name := fmt.Sprintf("stays-%d", i)
		w.boundPair(name)
		for _, o := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}} {
			w.must(w.client.Get(w.ctx, client.ObjectKey{Namespace: namespaceOf(o), Name: name}, o))
			settled = append(settled, o)
		}
	}
	counting, requests, _ := count(w.config)
	ticks := make(chan time.Time)
	stop := w.start(counting, nil, Options{ticks: ticks})
	for range 3 { // the third tick is taken once the second has enqueued everything
		select {
		case ticks <- time.Now():
		case <-w.ctx.Done():
			t.Fatal("the binder does not look again")
		}
	}
	w.volume("later", "1Gi", class("later"), in(corev1.VolumePending))
	w.claim("later", "1Gi", ofClass("later"))
	w.until(func() string { return w.joined("later", "later") })
	stop()
	for _, was := range settled {
		now := read(w, was.DeepCopyObject().(client.Object))
		if now == nil || now.GetResourceVersion() != was.GetResourceVersion() {
			t.Errorf("case 80: %T %s was changed: %+v", was, was.GetName(), now)
		}
	}
	if got := requests.Load(); got < 4 || got > 5 {
		t.Errorf("case 80: took %d requests to bind one claim beside what is settled, want 4 or 5", got)
	}
}

// namespaceOf is the namespace of the cases' objects of a kind.
func namespaceOf(o client.Object) string {
	if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
		return "default"
	}
	return ""
}

// Case 159.
func TestTwoBindersBindOneToOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	defer w.start(w.config, nil, Options{})()
	defer w.start(w.config, nil, Options{})()
	const n = 60
	for i := range n {
		w.volume(fmt.Sprintf("two-%d", i), "1Gi", class("two"), in(corev1.VolumePending))
		w.claim(fmt.Sprintf("two-%d", i), "1Gi", ofClass("two"))
	}
	for i := range n {
		w.until(func() string { return w.joined(fmt.Sprintf("two-%d", i), "") })
	}
	w.until(func() string {
		volumes := &corev1.PersistentVolumeList{}
		w.must(w.client.List(w.ctx, volumes))
		by := map[types.UID]int{}
		for i := range volumes.Items {
			v := &volumes.Items[i]
			if v.Status.Phase != corev1.VolumeBound || v.Spec.ClaimRef == nil {
				return fmt.Sprintf("case 159: volume %s is %s for %+v", v.Name, v.Status.Phase, v.Spec.ClaimRef)
			}
			by[v.Spec.ClaimRef.UID]++
		}
		if len(by) != n {
			return fmt.Sprintf("case 159: %d claims have a volume, want %d", len(by), n)
		}
		return ""
	})
}
