//go:build integration

package plugin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/volume"
)

// told is the Event that was emitted; empty for none.
func told(recorder *events.FakeRecorder) string {
	select {
	case event := <-recorder.Events:
		return event
	default:
		return ""
	}
}

// In each case the cache is stale, and nothing may be made from it.
func TestNothingIsMadeForAClaimThatLooksOtherwiseLive(t *testing.T) {
	w := newWorld(t, "stale-claim")
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"gone": func(c *corev1.PersistentVolumeClaim) {
			c.Finalizers = nil
			w.Must(w.Client.Update(w.Ctx, c))
			w.Must(w.Client.Delete(w.Ctx, c))
		},
		"replaced": func(c *corev1.PersistentVolumeClaim) {
			c.Finalizers = nil
			w.Must(w.Client.Update(w.Ctx, c))
			w.Must(w.Client.Delete(w.Ctx, c))
			c.UID, c.ResourceVersion = "", ""
			w.Must(w.Client.Create(w.Ctx, c))
		},
		"deleting": func(c *corev1.PersistentVolumeClaim) {
			c.Finalizers = append(c.Finalizers, "test.tarn.dev/keep")
			w.Must(w.Client.Update(w.Ctx, c))
			w.Must(w.Client.Delete(w.Ctx, c))
		},
		"given back": func(c *corev1.PersistentVolumeClaim) {
			delete(c.Annotations, volume.AnnSelectedNode)
			w.Must(w.Client.Update(w.Ctx, c))
		},
		"bound": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName = "other"
			w.Must(w.Client.Update(w.Ctx, c))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := w.alone()
			for _, act := range []Act{ActPromise, ActMake} {
				claim := w.claim(strings.ReplaceAll(name, " ", "-")+strings.ToLower(string(act)), func(c *corev1.PersistentVolumeClaim) {
					c.Annotations[volume.AnnSelectedNode] = w.name
				})
				v := w.view(claim)
				change(claim)
				if _, err := r.apply(w.Ctx, v, Plan{Act: act}); !errors.Is(err, kube.ErrStale) {
					t.Errorf("%s: got %v, want kube.ErrStale", act, err)
				}
				if live := claim.DeepCopy(); w.now(live) == nil && promised(live) {
					t.Errorf("%s: the claim was promised a volume", act)
				}
			}
			if made := w.fake.Ever(); len(made) > 0 {
				t.Errorf("%q was made", made)
			}
		})
	}
}

func TestCase108AVolumeThatExistsIsComparedByUID(t *testing.T) {
	w := newWorld(t, "adopt")
	r, recorder := w.alone()
	claim := w.claim("data")
	v := w.view(claim)
	existing := newVolume(v, plugin.Asset{Source: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/there"}}})
	existing.Spec.ClaimRef.UID = "another"
	w.Must(w.Client.Create(w.Ctx, existing))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err == nil || !strings.Contains(told(recorder), "belongs to another claim") {
		t.Errorf("another claim's: got %v, want a refusal that is told", err)
	}
	existing.Spec.ClaimRef.UID = claim.UID
	w.Must(w.Client.Update(w.Ctx, existing))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err != nil || v.Volume == nil || v.Volume.UID != existing.UID {
		t.Errorf("its own: got %v, want it taken", err)
	}
	w.Must(w.Client.Delete(w.Ctx, existing))
	if _, err := r.apply(w.Ctx, v, Plan{Act: ActMake}); err == nil || !strings.Contains(told(recorder), "being deleted") {
		t.Errorf("one that is being deleted: got %v, want a refusal that is told", err)
	}
	if made := w.fake.Ever(); len(made) > 0 {
		t.Errorf("%q was made", made)
	}
}

func TestNothingIsUndoneBehindAVolumeThatWasWritten(t *testing.T) {
	w := newWorld(t, "undo-late")
	r, _ := w.alone()
	claim := w.claim("data")
	v := w.view(claim)
	w.Must(r.promise(w.Ctx, v))
	w.Must(r.make(w.Ctx, v))
	late := &View{VolumeName: v.VolumeName, Claim: v.Claim, Plugin: v.Plugin}
	if _, err := r.apply(w.Ctx, late, Plan{Act: ActUndo}); !errors.Is(err, kube.ErrStale) {
		t.Errorf("got %v, want kube.ErrStale", err)
	}
	if got := w.fake.Names(); len(got) != 1 {
		t.Errorf("the storage has %q, want the volume", got)
	}
}

// released makes a volume and returns its view after its claim is gone.
func (w *world) released(r *reconciler, name string) *View {
	w.T.Helper()
	claim := w.claim(name)
	v := w.view(claim)
	w.Must(r.make(w.Ctx, v))
	v.Volume.Status.Phase = corev1.VolumeReleased
	w.Must(w.Client.Status().Update(w.Ctx, v.Volume))
	claim.Finalizers = nil
	w.Must(w.Client.Update(w.Ctx, claim))
	w.Must(w.Client.Delete(w.Ctx, claim))
	return &View{VolumeName: v.VolumeName, Volume: v.Volume, Plugin: v.Plugin}
}

func TestCase128NothingIsDestroyedThatLooksOtherwiseLive(t *testing.T) {
	w := newWorld(t, "stale-volume")
	r, _ := w.alone()
	for name, change := range map[string]func(v *View) (want error){
		"its claim is there": func(v *View) error {
			// No claim can be created with that UID; the volume is pointed at one instead.
			claim := w.claim("holder")
			v.Volume.Spec.ClaimRef.Name, v.Volume.Spec.ClaimRef.UID = claim.Name, claim.UID
			w.Must(w.Client.Update(w.Ctx, v.Volume))
			return errClaimThere
		},
		"it was set to Retain": func(v *View) error {
			live := v.Volume.DeepCopy()
			live.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			w.Must(w.Client.Update(w.Ctx, live))
			return kube.ErrStale
		},
		"it was bound again": func(v *View) error {
			live := v.Volume.DeepCopy()
			live.Status.Phase = corev1.VolumeBound
			w.Must(w.Client.Status().Update(w.Ctx, live))
			return kube.ErrStale
		},
		"it is another of that name": func(v *View) error {
			v.Volume = v.Volume.DeepCopy()
			v.Volume.UID = "earlier"
			return kube.ErrStale
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := w.released(r, fmt.Sprintf("c%d", len(w.fake.Ever())))
			want := change(v)
			if _, err := r.apply(w.Ctx, v, Plan{Act: ActDelete}); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			if w.fake.Deleted(v.VolumeName) > 0 {
				t.Error("the storage was destroyed")
			}
		})
	}
}

func TestCases46And76And115And129AClaimThatTookTheNameOrAnotherVolumeKeepsNothing(t *testing.T) {
	w := newWorld(t, "not-held")
	r, _ := w.alone()
	for name, c := range map[string]struct{ claim, bound string }{
		"cases 46 and 129: a claim of the name and of another uid": {"renewed", ""},
		"cases 76 and 115: the very claim, with another volume":    {"elsewhere", "other"},
	} {
		t.Run(name, func(t *testing.T) {
			v := w.released(r, c.claim)
			again := w.claim(c.claim, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = c.bound })
			if c.bound != "" {
				v.Volume.Spec.ClaimRef.UID = again.UID
				w.Must(w.Client.Update(w.Ctx, v.Volume))
			}
			if _, err := r.apply(w.Ctx, v, Plan{Act: ActDelete}); err != nil {
				t.Fatal(err)
			}
			if w.fake.Deleted(v.VolumeName) != 1 {
				t.Error("the storage was not destroyed")
			}
			w.Must(w.bindOnce()) // it removes what is being deleted
			if err := w.gone(v.Volume)(); err != nil {
				t.Error(err)
			}
			if w.Must(w.now(again)); again.DeletionTimestamp != nil || again.Spec.VolumeName != c.bound {
				t.Errorf("the claim is %+v, want it left alone", again)
			}
		})
	}
}

func TestCases122And126And127AFailedDeletionIsToldAndTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		broken    error
		change    func(*View)
		wantEvent string
		wantIn    string
		wantPhase corev1.PersistentVolumePhase
	}{
		"it fails":             {errors.New("the disk is gone"), func(*View) {}, "Warning VolumeFailedDelete", "the disk is gone", corev1.VolumeFailed},
		"it is in use":         {fmt.Errorf("%w: by somebody", plugin.ErrInUse), func(*View) {}, "Normal VolumeDelete", "by somebody", corev1.VolumeReleased},
		"there is no deleter":  {nil, func(v *View) { v.Plugin.Deleter = nil }, "Warning VolumeFailedDelete", "by hand", corev1.VolumeFailed},
		"it lies on node away": {nil, func(v *View) { v.Plugin.Node = "home" }, "Warning VolumeFailedDelete", `"home"`, corev1.VolumeReleased}, // no deletion was tried
		"it does not say where it lies": {nil, func(v *View) { delete(v.Volume.Annotations, tarnv1.AnnotationNode) },
			"Warning VolumeFailedDelete", "annotation tarn.dev/node", corev1.VolumeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "fails-"+strings.ReplaceAll(name, " ", "-"))
			r, recorder := w.alone()
			v := w.released(r, "data")
			for told(recorder) != "" { // Events from creation
			}
			w.fake.Break(plugintest.Delete, c.broken)
			changed := w.plugin
			v.Plugin = &changed
			c.change(v)
			if _, err := r.apply(w.Ctx, v, Plan{Act: ActDelete}); err == nil || !strings.Contains(err.Error(), c.wantIn) {
				t.Errorf("got %v, want an error with %q, so that it is tried again", err, c.wantIn)
			}
			if event := told(recorder); !strings.HasPrefix(event, c.wantEvent) || !strings.Contains(event, c.wantIn) {
				t.Errorf("told %q, want %q with %q", event, c.wantEvent, c.wantIn)
			}
			live := v.Volume.DeepCopy()
			w.Must(w.now(live))
			if live.Status.Phase != c.wantPhase || strings.Contains(live.Status.Message, c.wantIn) != (c.wantPhase == corev1.VolumeFailed) || live.DeletionTimestamp != nil {
				t.Errorf("the volume is %s, %q, deletion %v; want %s", live.Status.Phase, live.Status.Message, live.DeletionTimestamp, c.wantPhase)
			}
			v.Volume = live
			w.fake.Break(plugintest.Delete, nil)
			v.Plugin = &w.plugin
			w.Must(r.delete(w.Ctx, v))
			if len(w.fake.Names()) > 0 {
				t.Error("later success has left the storage")
			}
		})
	}
}

func TestCase116AClaimThatIsLookedAtAHundredTimesIsServedOnce(t *testing.T) {
	w := newWorld(t, "once")
	counted, taken := takenWrites(w.Config)
	stop := w.run(counted)
	claim := w.claim("data")
	w.eventually("the volume to be written", func() error {
		vol := &corev1.PersistentVolume{}
		return w.Client.Get(w.Ctx, client.ObjectKey{Name: volumeName(claim.UID)}, vol)
	})
	for i := range 100 {
		w.Must(w.now(claim))
		base := claim.DeepCopy()
		claim.Annotations["test.tarn.dev/touched"] = fmt.Sprint(i)
		w.Must(w.Client.Patch(w.Ctx, claim, client.MergeFrom(base)))
	}
	w.bind()
	w.bound(claim)
	stop()
	// The writes are the promise, the volume, and the fulfilled promise.
	if taken.Load() != 3 || w.fake.Made(volumeName(claim.UID)) != 1 {
		t.Errorf("%d writes, made %d times, want 3 and 1", taken.Load(), w.fake.Made(volumeName(claim.UID)))
	}
}

// takenWrites returns a configuration, and the number of its writes that the API server has
// accepted. Writes rejected because of a stale cache do not count. By those rejections a
// controller without a memory learns that a step is already done.
func takenWrites(config *rest.Config) (*rest.Config, *atomic.Int32) {
	taken := &atomic.Int32{}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && response.StatusCode < http.StatusBadRequest && isWrite(r) {
				taken.Add(1)
			}
			return response, err
		})
	})
	return config, taken
}
