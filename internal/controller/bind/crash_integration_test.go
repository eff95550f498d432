//go:build integration

package bind

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// path is one way of the binder from a first state to a last one. It reaches the last state in a
// number of writes, however often it is disturbed.
type path struct {
	name   string
	writes int
	// begin creates objects in the first state, all with one name.
	begin func(w *world, name string)
	// ended says what is missing from the last state.
	ended func(w *world, name string) string
}

var paths = []path{
	{"free", 4, func(w *world, name string) {
		w.volume(name, "1Gi", class(name))
		w.claim(name, "1Gi", ofClass(name))
	}, bothJoined},
	{"chosen of two", 4, func(w *world, name string) {
		w.volume(name, "1Gi", class(name))
		w.volume(name+"-too", "1Gi", class(name))
		w.claim(name, "1Gi", ofClass(name))
	}, func(w *world, name string) string {
		other := name
		if v := read(w, volumeOf(name, "1Gi")); v.Spec.ClaimRef != nil {
			other += "-too"
		}
		return w.joined(name, "") + w.volumeIs(other, corev1.VolumeAvailable, "")
	}},
	{"wanted by two", 4, func(w *world, name string) {
		w.claim(name, "1Gi", ofClass(name))
		w.claim(name+"-too", "1Gi", ofClass(name))
		w.volume(name, "1Gi", class(name))
	}, func(w *world, name string) string {
		v := read(w, volumeOf(name, "1Gi"))
		if v.Spec.ClaimRef == nil {
			return "nobody has the volume"
		}
		other := map[string]string{name: name + "-too", name + "-too": name}[v.Spec.ClaimRef.Name]
		if c := read(w, claimOf("1Gi", called("default", other))); c.Spec.VolumeName != "" || c.Status.Phase != corev1.ClaimPending {
			return fmt.Sprintf("claim %q is %s on %q beside the one that has the volume", other, c.Status.Phase, c.Spec.VolumeName)
		}
		return w.joined(v.Spec.ClaimRef.Name, name)
	}},
	{"reserved", 4, func(w *world, name string) {
		w.volume(name, "1Gi", in(corev1.VolumePending), to(name, ""))
		w.claim(name, "1Gi", ofClass(""))
	}, bothJoined},
	{"held", 3, func(w *world, name string) {
		c := w.claim(name, "1Gi", ofClass(""))
		w.volume(name, "1Gi", in(corev1.VolumePending), to(name, c.UID))
	}, bothJoined},
	{"named", 3, func(w *world, name string) {
		w.claim(name, "1Gi", ofClass(""), names(name))
		w.volume(name, "1Gi", in(corev1.VolumePending))
	}, bothJoined},
	{"made", 4, func(w *world, name string) {
		w.class(name)
		w.claim(name, "1Gi", ofClass(name))
		go w.provision(name)
	}, bothJoined},
	{"defaulted", 5, func(w *world, name string) {
		w.must(w.client.DeleteAllOf(w.ctx, &storagev1.StorageClass{}))
		// Create it before there is a default class, which admission would set. Admission learns a
		// moment late that the previous default is gone.
		for c := w.claim(name, "1Gi"); c.Spec.StorageClassName != nil; c = w.claim(name, "1Gi") {
			w.remove(c)
		}
		w.class(name, isDefault(0))
		go w.provision(name)
	}, bothJoined},
	{"stray", 2, func(w *world, name string) {
		c := w.boundPair(name)
		w.volume(name+"-stray", "1Gi", to(name, c.UID), marked(bbc), in(corev1.VolumeBound))
	}, func(w *world, name string) string {
		return w.volumeIs(name+"-stray", corev1.VolumeAvailable, "") + bothJoined(w, name)
	}},
	{"stray by hand", 2, func(w *world, name string) {
		c := w.boundPair(name)
		w.volume(name+"-stray", "1Gi", to(name, c.UID), in(corev1.VolumeBound))
	}, func(w *world, name string) string {
		if v := read(w, volumeOf(name+"-stray", "1Gi")); v.Spec.ClaimRef.UID != "" {
			return fmt.Sprintf("volume %q still has the claim's uid", v.Name)
		}
		return w.volumeIs(name+"-stray", corev1.VolumeAvailable, name) + bothJoined(w, name)
	}},
	{"offered", 2, func(w *world, name string) {
		w.volume(name, "1Gi", class(name), in(corev1.VolumePending), marked(bbc, volume.AnnProvisionedBy+"=p.example", volume.AnnMigratedTo+"=old.example"))
	}, func(w *world, name string) string {
		v := read(w, volumeOf(name, "1Gi"))
		for _, old := range []string{bbc, volume.AnnMigratedTo} {
			if _, still := v.Annotations[old]; still {
				return fmt.Sprintf("volume %q has annotation %s", name, old)
			}
		}
		return w.volumeIs(name, corev1.VolumeAvailable, "")
	}},
	{"surplus", 1, func(w *world, name string) {
		c := w.boundPair(name)
		w.volume(name+"-more", "1Gi", to(name, c.UID), marked(volume.AnnProvisionedBy+"=p.example"), in(corev1.VolumePending))
	}, func(w *world, name string) string {
		return w.volumeIs(name+"-more", corev1.VolumeReleased, name) + bothJoined(w, name)
	}},
	{"released", 1, func(w *world, name string) {
		w.remove(w.boundPair(name))
	}, func(w *world, name string) string { return w.volumeIs(name, corev1.VolumeReleased, name) }},
	{"lost", 1, func(w *world, name string) {
		w.claim(name, "1Gi", ofClass(""), completed(name, corev1.ClaimBound))
	}, func(w *world, name string) string { return w.claimIs(name, corev1.ClaimLost) }},
	{"pending again", 2, func(w *world, name string) {
		w.claim(name, "1Gi", ofClass(""), names(name), inState(corev1.ClaimBound), noted(volume.AnnBetaProvisioner+"=p.example", volume.AnnMigratedTo+"=old.example"))
	}, func(w *world, name string) string {
		if c := read(w, claimOf("1Gi", called("default", name))); c.Annotations[volume.AnnMigratedTo] != "" {
			return fmt.Sprintf("claim %q is said to have moved", name)
		}
		return w.claimIs(name, corev1.ClaimPending)
	}},
	{"repaired", 2, func(w *world, name string) {
		w.boundPair(name)
		v := read(w, volumeOf(name, "1Gi"))
		v.Spec.ClaimRef = nil
		w.must(w.client.Update(w.ctx, v))
		w.phase(v, corev1.VolumeReleased)
	}, bothJoined},
}

func bothJoined(w *world, name string) string { return w.joined(name, name) }

// boundPair creates a claim and a volume that are bound to each other.
func (w *world) boundPair(name string) *corev1.PersistentVolumeClaim {
	c := w.claim(name, "1Gi", ofClass(""), completed(name, corev1.ClaimBound))
	w.volume(name, "1Gi", to(name, c.UID), in(corev1.VolumeBound))
	return c
}

// provision replaces an external provisioner: it creates the volume as soon as the claim is handed
// to it.
func (w *world) provision(name string) {
	claims, err := w.client.Watch(w.ctx, &corev1.PersistentVolumeClaimList{}, client.InNamespace("default"), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return // the case has ended
	}
	defer claims.Stop()
	for event := range claims.ResultChan() {
		c, ok := event.Object.(*corev1.PersistentVolumeClaim)
		if !ok || c.Annotations[volume.AnnProvisioner] != name {
			continue
		}
		v := volumeOf(name, "1Gi", class(name), to(name, c.UID), marked(volume.AnnProvisionedBy+"="+name))
		v.UID, v.ResourceVersion, v.Spec.ClaimRef.Namespace = "", "", "default"
		if w.client.Create(w.ctx, v) == nil {
			return
		}
	}
}

// disturb runs each path undisturbed, and once for each of its writes with that write disturbed. It
// checks that each run reaches the last state. Path "defaulted" is case 98 where a write conflicts.
func disturb(t *testing.T, number int, kind string, run func(w *world, nth int) (stop func())) {
	config := testkit.OwnAPIServer(t)
	for _, p := range paths {
		t.Run(fmt.Sprintf("case %d: %s", number, p.name), func(t *testing.T) {
			for nth := 0; nth <= p.writes; nth++ {
				name := strings.ReplaceAll(fmt.Sprintf("%s-%s-%d", kind, p.name, nth), " ", "-")
				disturbOnce(newWorld(t, config), number, p, name, nth, run)
			}
		})
	}
}

func disturbOnce(w *world, number int, p path, name string, nth int, run func(w *world, nth int) (stop func())) {
	w.t.Helper()
	p.begin(w, name)
	w.ledger = &ledger{}
	stop := run(w, nth)
	defer func() {
		stop()
		// Only path "lost" may call a claim Lost. This also proves that the ledger can parse
		// writes.
		if lost := w.ledger.lost(); lost != (p.name == "lost") {
			w.t.Errorf("case %d: disturbed at write %d: that a claim was called Lost: %t", number, nth, lost)
		}
		if number == 165 {
			w.reread(nth)
		}
	}()
	w.until(func() string {
		if wrong := p.ended(w, name); wrong != "" {
			return fmt.Sprintf("case %d: disturbed at write %d: %s", number, nth, wrong)
		}
		return ""
	})
}

func TestABinderKilledAfterAnyWriteIsTakenOverFrom(t *testing.T) {
	t.Parallel()
	disturb(t, 158, "killed", func(w *world, nth int) func() {
		killer := testkit.NewKiller(nth)
		stop := w.start(killer.Wrap(w.config), killer.Dead(), Options{})
		if nth > 0 {
			select {
			case <-killer.Dead():
			case <-w.ctx.Done():
				w.t.Errorf("the binder made %d writes, want it to be killed at %d", killer.Writes(), nth)
			}
			stop()
			stop = w.start(w.config, nil, Options{})
		}
		return stop
	})
}

func TestAPathTakesExactlyItsWrites(t *testing.T) {
	t.Parallel()
	config := testkit.OwnAPIServer(t)
	for _, p := range paths {
		t.Run("case 155: "+p.name, func(t *testing.T) {
			w, name := newWorld(t, config), "exact-"+strings.ReplaceAll(p.name, " ", "-")
			p.begin(w, name)
			killer := testkit.NewKiller(0)
			stop := w.start(killer.Wrap(w.config), nil, Options{})
			w.until(func() string { return p.ended(w, name) })
			stop() // no request is in flight any more
			if got := killer.Writes(); got != p.writes {
				t.Errorf("case 155: took %d writes, want %d", got, p.writes)
			}
			again := testkit.NewKiller(0)
			w.start(again.Wrap(w.config), nil, Options{})()
			if got := again.Writes(); got != 0 {
				t.Errorf("case 155: another binder made %d writes on what was settled", got)
			}
		})
	}
}

// tamper returns a configuration whose nth write is answered by instead, and whether that happened.
func tamper(config *rest.Config, nth int, instead func(next http.RoundTripper, r *http.Request) (*http.Response, error)) (tampered *rest.Config, hit *atomic.Bool) {
	config, hit = rest.CopyConfig(config), &atomic.Bool{}
	var writes atomic.Int32
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/persistentvolume") && int(writes.Add(1)) == nth {
				hit.Store(true)
				return instead(next, r)
			}
			return next.RoundTrip(r)
		})
	})
	return config, hit
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// wantHit makes stop fail the case if the nth write never happened.
func (w *world) wantHit(number, nth int, hit *atomic.Bool, stop func()) func() {
	return func() {
		w.t.Helper()
		stop()
		if nth > 0 && !hit.Load() {
			w.t.Errorf("case %d: write %d was never made", number, nth)
		}
	}
}

// touched is the outcome of a write whose object another writer changed just before.
type touched struct {
	object client.Object
	answer int
}

func TestSomebodyElsesWriteBeforeAnyOfOursIsRespected(t *testing.T) {
	t.Parallel()
	disturb(t, 157, "overtaken", func(w *world, nth int) func() {
		var was atomic.Pointer[touched]
		config, hit := tamper(w.config, nth, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			o, err := w.touch(r.URL.Path)
			if err != nil {
				return nil, err
			}
			response, err := next.RoundTrip(r)
			if err == nil {
				was.Store(&touched{o, response.StatusCode})
			}
			return response, err
		})
		stop := w.wantHit(157, nth, hit, w.start(config, nil, Options{}))
		return func() {
			stop()
			if is := was.Load(); is != nil {
				w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(is.object), is.object))
				if is.answer != http.StatusConflict || is.object.GetAnnotations()["touched"] != "yes" {
					w.t.Errorf("case 157: write %d, which somebody else overtook, was answered %d, and %T has annotations %v", nth, is.answer, is.object, is.object.GetAnnotations())
				}
			} else if nth > 0 {
				w.t.Errorf("case 157: write %d had no answer", nth)
			}
		}
	})
}

// touch annotates the object of a request, as another writer.
func (w *world) touch(path string) (client.Object, error) {
	parts := strings.Split(strings.TrimSuffix(path, "/status"), "/")
	name := parts[len(parts)-1]
	var o client.Object = &corev1.PersistentVolume{}
	if parts[len(parts)-2] == "persistentvolumeclaims" {
		o = &corev1.PersistentVolumeClaim{}
		o.SetNamespace("default")
	}
	o.SetName(name)
	return o, w.client.Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"yes"}}}`)))
}

var errLine = errors.New("the line went dead")

func TestAWriteOfUnknownOutcomeIsReadAnew(t *testing.T) {
	t.Parallel()
	disturb(t, 165, "done", func(w *world, nth int) func() {
		// The write was carried out, but the binder got no answer.
		config, hit := tamper(w.config, nth, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				err = response.Body.Close()
			}
			return nil, errors.Join(errLine, err)
		})
		return w.wantHit(165, nth, hit, w.start(config, nil, Options{}))
	})
}

func TestAWriteThatNeverArrivedIsMadeAgain(t *testing.T) {
	t.Parallel()
	disturb(t, 165, "undone", func(w *world, nth int) func() {
		config, hit := tamper(w.config, nth, func(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: http.StatusGatewayTimeout, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Timeout","code":504}`)),
			}, nil
		})
		return w.wantHit(165, nth, hit, w.start(config, nil, Options{}))
	})
}
