package pool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/volume"
)

// single returns the single actions of a plan.
func single(actions []action.Action) []action.Action {
	var all []action.Action
	for _, a := range actions {
		if several, ok := a.(action.Together); ok {
			all = append(all, several...)
		} else {
			all = append(all, a)
		}
	}
	return all
}

// did names the actions of a plan, without Events and status.
func did(p Plan) string {
	var names []string
	for _, a := range single(p.Actions) {
		switch a := a.(type) {
		case action.AddFinalizer:
			names = append(names, "hold")
		case action.RemoveFinalizer:
			names = append(names, "letgo")
		case action.Create:
			names = append(names, map[string]string{"*v1.PersistentVolumeClaim": "order ", "*v1.Pod": "start ", "*v1.StorageClass": "make "}[fmt.Sprintf("%T", a.Object)]+a.Object.GetName())
		case action.Delete:
			names = append(names, map[string]string{"*v1.PersistentVolumeClaim": "dismiss ", "*v1.Pod": "stop ", "*v1.StorageClass": "drop ", "*v1.PersistentVolume": "remove "}[fmt.Sprintf("%T", a.Object)]+a.Object.GetName())
		case action.Patch:
			names = append(names, changed(a))
		}
	}
	return strings.Join(names, ", ")
}

// changed names a change of a volume, or of the set, by its result.
func changed(p action.Patch) string {
	to, ok := p.To.(*corev1.PersistentVolume)
	if !ok {
		return "follow"
	}
	from, what := p.From.(*corev1.PersistentVolume), "settle"
	switch {
	case to.Spec.ClaimRef != nil && volume.GivenUp(to, testNamespace):
		what = "give up"
	case marked(to) && to.Spec.ClaimRef == nil:
		what = "free"
	case marked(to):
		what = "mark"
	case to.Spec.ClaimRef != nil && isFilling(from):
		what = "recall"
	case to.Spec.ClaimRef != nil && !marked(from):
		what = "keep"
	}
	return what + " " + to.Name
}

func withClaims(v *View, claims ...corev1.PersistentVolumeClaim) *View {
	v.Claims = claims
	return v
}

// withLost takes the nodes of volumes away.
func withLost(v *View, names ...string) *View {
	v.Lost = map[string]bool{}
	for _, name := range names {
		v.Lost[name] = true
	}
	return v
}

func with(v *View, change func(*View)) *View {
	change(v)
	return v
}

var (
	anHourAgo  = metav1.NewTime(testTime.Add(-time.Hour))
	aMinuteAgo = metav1.NewTime(testTime.Add(-time.Minute))
)

func claimed(v *View, volume string) *View {
	v.Claimed[volume] = true
	return v
}

func TestThePlanOfAPool(t *testing.T) {
	s := set(2, 4)
	pending := func(slot int) corev1.PersistentVolumeClaim { return filler(s, slot, "") }
	ending := func(c corev1.PersistentVolumeClaim) corev1.PersistentVolumeClaim {
		c.DeletionTimestamp = &anHourAgo
		return c
	}
	for _, c := range []struct {
		name string
		view *View
		want string
	}{
		{"a new set is held first", view(set(2, 4, func(s *tarnv1.PersistentVolumeSet) { s.Finalizers = nil })), "hold"},
		{"an empty pool makes its class, then orders as many as are missing", with(view(s), func(v *View) { v.Filler = nil }), "make tarn-pool-gold, order pool-set-uid-0, order pool-set-uid-1"},
		{"a class that has changed is copied anew", with(view(s, volumeOf(s, "a"), volumeOf(s, "b")), func(v *View) { v.Class.Parameters = nil }), "drop tarn-pool-gold, make tarn-pool-gold"},
		{"what is being made counts", withClaims(view(s, volumeOf(s, "a")), pending(0)), ""},
		{"a claim being deleted holds its slot, but is no volume to come", withClaims(view(s, volumeOf(s, "a")), ending(pending(0))), "order pool-set-uid-1"},
		{"volumes in use count for the maximum", view(s, volumeOf(s, "a", boundTo("x")), volumeOf(s, "b", boundTo("y")), volumeOf(s, "c", boundTo("z"))), "order pool-set-uid-0"},
		{"nothing is ordered at the maximum", view(set(2, 2), volumeOf(s, "a", boundTo("x")), volumeOf(s, "b", boundTo("y"))), ""},
		{"a released volume counts for the maximum and is left alone", view(set(1, 1), volumeOf(s, "a", boundTo("x"), in(corev1.VolumeReleased))), ""},
		{"a volume made by hand is a spare like others", view(set(1, 4), volumeOf(s, "a", byHand)), ""},
		{"a volume reserved by name is no spare", view(set(1, 4), volumeOf(s, "a", boundTo(""), in(corev1.VolumeAvailable))), "order pool-set-uid-0"},
		{"a spare whose node is gone is given up and replaced", withLost(view(s, volumeOf(s, "a"), volumeOf(s, "b")), "a"), "give up a, order pool-set-uid-0"},
		{"so is one of policy Retain that was never used", withLost(view(set(0, 4), volumeOf(s, "a", retained)), "a"), "give up a"},
		{"one of policy Retain that may hold data stays", withLost(view(set(1, 4), volumeOf(s, "a", retained, annotated(tarnv1.AnnotationPoolUnused, ""))), "a"), "order pool-set-uid-0"},
		{"so does one made by hand", withLost(view(set(1, 4), volumeOf(s, "a", byHand)), "a"), "order pool-set-uid-0"},
		{"and one that is protected", withLost(view(set(1, 4), volumeOf(s, "a", protected)), "a"), "order pool-set-uid-0"},
		{"and one of another set", withLost(view(set(1, 4), volumeOf(s, "a", ofSet("other"))), "a"), "order pool-set-uid-0"},
		{"one on its way gets its policy first", withLost(view(set(0, 4), volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeAvailable))), "a"), "settle a"},
		{"one in use stays whatever its node", withLost(view(set(0, 4), volumeOf(s, "a", boundTo("x"))), "a"), ""},
		{"without its class nothing is ordered", with(view(s), func(v *View) { v.Class = nil }), ""},
		{"at most so many are ordered at once", view(set(100, 100)), strings.TrimSuffix(orders(0, orderedAtOnce), ", ")},
		{"at most so many are made at once", withClaims(view(set(100, 100)), many(s, fillingAtOnce-1)...), strings.TrimSuffix(orders(fillingAtOnce-1, fillingAtOnce), ", ")},

		{"a claim that waits for its first consumer gets one", waitsForConsumer(withClaims(view(set(1, 1)), pending(0))), "start pool-set-uid-0"},
		{"a consumer ends when its claim is bound, and the volume is marked", with(waitsForConsumer(withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0), unmarked)), filler(s, 0, "a"))),
			func(v *View) {
				v.Pods = []corev1.Pod{*fillerPod(v, &v.Claims[0])}
			}), "mark a, stop pool-set-uid-0"},
		{"the volume of a bound filler claim is marked before anything else", withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0), unmarked)), filler(s, 0, "a")), "mark a"},
		{"a volume whose next claim has gone gets its policy", view(set(1, 1), volumeOf(s, "a", fillerOf(0), boundTo("x"), in(corev1.VolumeReleased))), "settle a"},
		{"one that is Released still, though its next claim is there, waits", claimed(view(set(1, 1), volumeOf(s, "a", fillerOf(0), boundTo("x"), in(corev1.VolumeReleased))), "a"), ""},
		{"one that is Released still, and reserved by name, waits", view(set(1, 1), volumeOf(s, "a", fillerOf(0), boundTo(""), in(corev1.VolumeReleased))), ""},
		{"a marked volume no longer needs its claim", withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0))), filler(s, 0, "a")), "dismiss pool-set-uid-0"},
		{"a marked volume that is not retained is marked again", withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0), func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		})), filler(s, 0, "a")), "mark a"},
		{"a marked volume waits for its claim to be gone", withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0))), ending(filler(s, 0, "a"))), ""},
		{"a marked volume without its claim becomes nobody's", view(set(1, 1), volumeOf(s, "a", fillerOf(0), in(corev1.VolumeReleased))), "free a"},
		{"nobody's volume stays retained until it is Available", view(set(1, 1), volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeReleased))), ""},
		{"an Available volume gets its policy", view(set(1, 1), volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeAvailable))), "settle a"},
		{"a volume drawn before it has its policy gets it too", view(set(0, 1), volumeOf(s, "a", fillerOf(0), boundTo("x"))), "settle a"},
		{"a volume on its way in is ordered no second time", view(set(1, 4), volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeReleased))), ""},
		{"a claim that has lost its volume is dismissed", withClaims(view(set(1, 1)), with2(filler(s, 0, "a"), func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })), "dismiss pool-set-uid-0"},

		{"above the maximum the largest spare goes", view(set(0, 1), volumeOf(s, "a"), volumeOf(s, "b", of("3Gi")), volumeOf(s, "c", of("2Gi"))), "give up b"},
		{"one by one", view(set(0, 1), volumeOf(s, "a"), volumeOf(s, "b", of("3Gi"), leavingNow), volumeOf(s, "c", of("2Gi"))), ""},
		{"what is not made yet goes before what is there", withClaims(view(set(0, 1), volumeOf(s, "a")), pending(0)), "dismiss pool-set-uid-0"},
		{"volumes in use, reserved and released stay however many there are", view(set(0, 0), volumeOf(s, "a", boundTo("x")), volumeOf(s, "b", boundTo("")), volumeOf(s, "c", boundTo("y"), in(corev1.VolumeReleased)), volumeOf(s, "d", boundTo("z"), in(corev1.VolumeFailed))), ""},
		{"a spare of another set counts and stays", view(set(0, 0), volumeOf(s, "a", ofSet("other"))), ""},
		{"one of a set that is no more is nobody's", view(set(0, 0), volumeOf(s, "a", ofSet("gone"))), "give up a"},
		{"a volume that points at no claim, though one points at it, is in use", claimed(view(set(0, 0), volumeOf(s, "a")), "a"), ""},
		{"and no spare", claimed(view(set(1, 2), volumeOf(s, "a")), "a"), "order pool-set-uid-0"},
		{"a protected spare stays", view(set(0, 1), volumeOf(s, "a", protected, of("3Gi")), volumeOf(s, "b", protected)), ""},
		{"and another goes instead", view(set(0, 1), volumeOf(s, "a", protected, of("3Gi")), volumeOf(s, "b")), "give up b"},
		{"what was given up and then protected stays, and holds up no other", view(set(0, 1), volumeOf(s, "a", byHand, protected, givenUpBy(s), in(corev1.VolumeReleased)),
			volumeOf(s, "b"), volumeOf(s, "c")), "give up b"},
		{"a volume that is deleted for ever holds up no other", view(set(0, 1), volumeOf(s, "a", leavingLong), volumeOf(s, "b"), volumeOf(s, "c")), "give up b"},
		{"nor does one that was given up long ago", view(set(0, 1), volumeOf(s, "a", givenUpBy(s), in(corev1.VolumeReleased), func(vol *corev1.PersistentVolume) {
			vol.Status.LastPhaseTransitionTime = &anHourAgo
		}), volumeOf(s, "b"), volumeOf(s, "c")), "give up b"},
		{"one that was given up just now is waited for, however long it was Available", view(set(0, 1), volumeOf(s, "a", givenUpBy(s), func(vol *corev1.PersistentVolume) {
			vol.Status.LastPhaseTransitionTime = &anHourAgo
		}), volumeOf(s, "b"), volumeOf(s, "c")), ""},
		{"a spare has its policy before it goes", view(set(0, 0), volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeAvailable))), "settle a"},
		{"a filler claim's volume that is older than the claim is kept", withClaims(view(set(1, 1), volumeOf(s, "old", fillerOf(0), unmarked, made(testTime.Add(-time.Hour)))), youngFiller(s, "old")), "keep old, dismiss pool-set-uid-0"},
		{"so is one that no provisioner has made", withClaims(view(set(1, 1), volumeOf(s, "old", fillerOf(0), unmarked, made(testTime), func(vol *corev1.PersistentVolume) { vol.Annotations = nil })), youngFiller(s, "old")), "keep old, dismiss pool-set-uid-0"},
		{"one of the claim's name is its own, whatever the clocks say", withClaims(view(set(1, 1), volumeOf(s, "pvc-filler-0", fillerOf(0), unmarked, made(testTime.Add(-time.Hour)))), youngFiller(s, "pvc-filler-0")), "mark pvc-filler-0"},
		{"a marked volume that is deleted is taken back before its claim goes", withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0), leavingNow)), filler(s, 0, "a")), "recall a, dismiss pool-set-uid-0"},
		{"or after it has gone", view(set(1, 2), volumeOf(s, "a", fillerOf(0), leavingNow)), "recall a, order pool-set-uid-0"},
		{"but not if it is protected", withClaims(view(set(1, 1), volumeOf(s, "a", fillerOf(0), leavingNow, protected)), filler(s, 0, "a")), "dismiss pool-set-uid-0"},
		{"the object of a volume that no provisioner deletes is removed", view(set(0, 0), volumeOf(s, "a", byHand, givenUpBy(s))), "remove a"},
		{"that of one whose provisioner deletes it is not", view(set(0, 0), volumeOf(s, "a", givenUpBy(s))), ""},

		{"a filler claim of the old template is dismissed, and its volume with it", withClaims(view(set(1, 2), volumeOf(s, "a", fillerOf(0), unmarked)), oldFiller(s, 0, "a")), "dismiss pool-set-uid-0"},
		{"a spare of the old template goes when there are more than enough", view(set(1, 4), volumeOf(s, "a"), volumeOf(s, "b", ofOldTemplate)), "give up b"},
		{"else a new one comes first", view(set(2, 4), volumeOf(s, "a"), volumeOf(s, "b", ofOldTemplate)), "order pool-set-uid-0"},
		{"a protected one of the old template stays, and no new one comes for it", view(set(2, 4), volumeOf(s, "a"), volumeOf(s, "b", ofOldTemplate, protected)), ""},
		{"where there is no room for it, the old one stays", view(set(2, 2), volumeOf(s, "a"), volumeOf(s, "b", ofOldTemplate)), ""},
		{"one at a time", view(set(0, 4), volumeOf(s, "a", ofOldTemplate, leavingNow), volumeOf(s, "b", ofOldTemplate)), ""},
		{"a volume made by hand is of no template", view(set(0, 4), volumeOf(s, "a", byHand)), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := did(plan(c.view, testTime)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// orders are the orders of slots from one to before another.
func orders(from, to int) string {
	var text strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&text, "order pool-set-uid-%d, ", i)
	}
	return text.String()
}

// many are filler claims in the lowest slots that wait for their volumes.
func many(s *tarnv1.PersistentVolumeSet, n int) []corev1.PersistentVolumeClaim {
	var claims []corev1.PersistentVolumeClaim
	for i := range n {
		claims = append(claims, filler(s, i, ""))
	}
	return claims
}

func nobodys(vol *corev1.PersistentVolume)    { vol.Spec.ClaimRef = nil }
func leavingNow(vol *corev1.PersistentVolume) { vol.DeletionTimestamp = &aMinuteAgo }
func leavingLong(vol *corev1.PersistentVolume) {
	vol.DeletionTimestamp = &anHourAgo
}

func givenUpBy(s *tarnv1.PersistentVolumeSet) func(*corev1.PersistentVolume) {
	return func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef = volume.Surplus(s, testNamespace) }
}

func with2(c corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) corev1.PersistentVolumeClaim {
	change(&c)
	return c
}

func labelled(vol *corev1.PersistentVolume) { vol.Labels = map[string]string{"pool": testSet} }

// youngFiller is the filler claim of slot 0, created at testTime.
func youngFiller(s *tarnv1.PersistentVolumeSet, vol string) corev1.PersistentVolumeClaim {
	return filler(s, 0, vol, func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.NewTime(testTime) })
}

func oldFiller(s *tarnv1.PersistentVolumeSet, slot int, vol string) corev1.PersistentVolumeClaim {
	return filler(s, slot, vol, func(c *corev1.PersistentVolumeClaim) { c.Annotations[tarnv1.AnnotationPoolTemplate] = "old" })
}

func TestTheEndOfASet(t *testing.T) {
	going := func(s *tarnv1.PersistentVolumeSet) { s.DeletionTimestamp = &anHourAgo }
	orphans := func(s *tarnv1.PersistentVolumeSet) {
		s.Annotations = map[string]string{tarnv1.AnnotationOrphan: "true"}
	}
	s, o := set(2, 4, going), set(2, 4, going, orphans)
	for _, c := range []struct {
		name string
		view *View
		want string
	}{
		{"with nothing left the class goes and the set is let go", view(s), "drop tarn-pool-gold, letgo"},
		{"spares are given up, bound volumes left alone", view(s, volumeOf(s, "a"), volumeOf(s, "b", boundTo("x"))), "give up a"},
		{"so are those whose node is gone", withLost(view(s, volumeOf(s, "a"), volumeOf(s, "b", protected)), "a", "b"), "give up a"},
		{"spares of another set stay", view(s, volumeOf(s, "a", ofSet("other"))), "drop tarn-pool-gold, letgo"},
		{"so do those made by hand", view(s, volumeOf(s, "a", byHand)), "drop tarn-pool-gold, letgo"},
		{"and those that are protected", view(s, volumeOf(s, "a", protected)), "drop tarn-pool-gold, letgo"},
		{"and those that a claim names", claimed(view(s, volumeOf(s, "a")), "a"), "drop tarn-pool-gold, letgo"},
		{"what was given up and then protected does not hold the set", view(s, volumeOf(s, "a", byHand, protected, givenUpBy(s))), "drop tarn-pool-gold, letgo"},
		{"a protected volume comes to the end of its passage", view(s, volumeOf(s, "a", fillerOf(0), protected)), "free a"},
		{"its filler claim goes first", withClaims(view(s, volumeOf(s, "a", fillerOf(0), protected)), filler(s, 0, "a")), "dismiss pool-set-uid-0"},
		{"a protected volume outlives a filler claim even unmarked", withClaims(view(s, volumeOf(s, "a", fillerOf(0), unmarked, labelled, protected)), filler(s, 0, "a")), "keep a, dismiss pool-set-uid-0"},
		{"a marked volume that is nobody's waits to be Available", view(s, volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeReleased))), ""},
		{"then gets its policy", view(s, volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeAvailable))), "settle a"},
		{"unless a claim names it", claimed(view(s, volumeOf(s, "a", fillerOf(0), nobodys, in(corev1.VolumeAvailable))), "a"), ""},
		{"orphaned spares stay", view(o, volumeOf(o, "a")), "drop tarn-pool-gold, letgo"},
		{"filler claims go first", withClaims(view(s), filler(s, 0, "")), "dismiss pool-set-uid-0"},
		{"a marked volume is taken back to where it goes with its claim", withClaims(view(s, volumeOf(s, "a", fillerOf(0))), filler(s, 0, "a")), "recall a, dismiss pool-set-uid-0"},
		{"a marked volume without its claim is given up", view(s, volumeOf(s, "a", fillerOf(0))), "give up a"},
		{"or comes to its end where spares stay", view(o, volumeOf(o, "a", fillerOf(0))), "free a"},
		{"a bound volume gets its policy before nobody knows it any more", view(s, volumeOf(s, "a", fillerOf(0), boundTo("x"))), "settle a"},
		{"what the set has given up is removed before nobody knows it any more", view(s, volumeOf(s, "a", byHand, givenUpBy(s))), "remove a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := did(plan(c.view, testTime)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestSparesAreSpreadEvenly(t *testing.T) {
	s := set(5, 5, func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.TopologyKey = "zone" })
	v := waitsForConsumer(view(s, volumeOf(s, "a", func(vol *corev1.PersistentVolume) { vol.Annotations[tarnv1.AnnotationPoolTopology] = "x" })))
	v.Domains, v.Open = map[string]string{"n1": "x", "n2": "y", "n3": "y", "n4": "z", "closed": "w"}, []string{"x", "y", "z"}
	var got []string
	for _, a := range plan(v, testTime).Actions {
		if a, ok := a.(action.Create); ok {
			got = append(got, a.Object.GetAnnotations()[tarnv1.AnnotationPoolTopology])
		}
	}
	if want := []string{"y", "z", "x", "y"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	vol := volumeOf(s, "b", fillerOf(0), unmarked)
	claim := filler(s, 0, "b", func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n4" })
	if got := mark(v, vol, &claim).Annotations[tarnv1.AnnotationPoolTopology]; got != "z" {
		t.Errorf("a volume on n4 is marked with %q, want z", got)
	}
}

func TestAPoolIsLookedAtAgainWhenOneIsDeletedForTooLong(t *testing.T) {
	s := set(0, 1)
	for _, c := range []struct {
		name string
		view *View
		want time.Time
	}{
		{"nothing leaves", view(s, volumeOf(s, "a")), time.Time{}},
		{"one has begun to", view(s, volumeOf(s, "a", leavingNow), volumeOf(s, "b", leavingLong)), aMinuteAgo.Add(stuckAfter)},
		{"one has done so for too long", view(s, volumeOf(s, "a", leavingLong)), time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := plan(c.view, testTime).Again; !got.Equal(c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestTheVolumesThatAreKeptAreNamedWhenTheirSetGoes(t *testing.T) {
	s := set(1, 1, func(s *tarnv1.PersistentVolumeSet) { s.DeletionTimestamp = &anHourAgo })
	scrubbed := volumeOf(s, "c", func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: testNamespace, Name: tarnv1.ScrubPrefix + string(vol.UID), UID: "scrub"}
	}, in(corev1.VolumeBound))
	all := single(plan(view(s, volumeOf(s, "a", protected), volumeOf(s, "b", byHand, protected), scrubbed), testTime).Actions)
	for i, want := range []string{
		"1 volumes are kept, because their label tarn.dev/deletion-protection protects them from deletion: a",
		"1 volumes are being recycled; they are kept and become Available to any claim of their class: c",
	} {
		if event, ok := all[i].(action.Emit); !ok || event.Note != want {
			t.Errorf("got %+v, want an Event that says %q", all[i], want)
		}
	}
}
