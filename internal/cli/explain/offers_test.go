package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// left returns a volume that the deleted claim shop/c has left with its data.
func left(changes ...func(*corev1.PersistentVolume)) corev1.PersistentVolume {
	return freeVolume("left", "2Gi", append([]func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{Namespace: "shop", Name: "c", UID: "d"}, corev1.VolumeReleased
	}}, changes...)...)
}

// wantsLeft returns a claim that names that volume, or otherwise only comes nearest to it.
func wantsLeft(names bool, vol corev1.PersistentVolume, changes ...func(*world, *volumeView)) *world {
	return with(newWorld(), func(w *world) {
		w.class.Provisioner, w.claim.Annotations, w.volumeView.Provisioner = noProvisioner, nil, nil
		v := w.volumeView
		if names {
			w.claim.Spec.VolumeName, v.Name, v.Volume = vol.Name, vol.Name, &vol
		} else {
			w.claimView.Candidates = []corev1.PersistentVolume{vol}
			w.nearest()
			v = w.claimView.Nearest
		}
		for _, change := range changes {
			change(w, v)
		}
	})
}

// Old data is offered only to a claim that names the volume, and only if nothing uses the volume
// any more.
func TestOldDataIsHandedToWhoAsksAlone(t *testing.T) {
	csi := func(v *corev1.PersistentVolume) {
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "gold"}
	}
	other := func(names string) func(*world, *volumeView) {
		return func(_ *world, v *volumeView) {
			v.Claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "c", UID: "new"}}
			v.Claim.Spec.VolumeName = names
		}
	}
	unread := func(o Object) func(*world, *volumeView) { return func(w *world, _ *volumeView) { hides(w, o) } }
	nobody := func(*world, *volumeView) {}
	const give = `{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"shop","name":"data","uid":"claim-uid"}}`
	for name, c := range map[string]struct {
		vol    corev1.PersistentVolume
		change func(*world, *volumeView)
		given  bool
		told   string // in the link of the volume
	}{
		"nobody uses it": {left(), nobody, true, "the command gives the volume and its data to this claim alone"},
		"it belongs to another namespace": {left(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "b" }), nobody, false,
			"its data belongs to namespace b, and explain does not give it to namespace shop"},
		"its claim is there again, with another": {left(), other("other"), true, "to this claim alone"},
		"its claim is there again, and names it": {left(), other("left"), false, "the existing claim shop/c names it"},
		"its claim is there, which no binder has seen": {left(), func(_ *world, v *volumeView) {
			v.Claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "c", UID: "d"}}
		}, false, ""},
		"its claim cannot be read": {left(), unread(Object{Claim, "shop", "c"}), false, ""},
		"a node uses it": {left(csi), func(_ *world, v *volumeView) {
			v.Stages = []stageView{{Stage: &tarnv1.PavStage{}}}
		}, false, "which a node still uses"},
		"a pod may have it":                           {left(), func(_ *world, v *volumeView) { v.Last = []*corev1.Pod{somePod("shop", "user", runs)} }, false, "which pod shop/user may still use"},
		"stages cannot be read":                       {left(csi), unread(Object{Kind: pavStage}), false, "explain cannot tell whether a node still uses it"},
		"stages cannot be read, of which it has none": {left(), unread(Object{Kind: pavStage}), true, "to this claim alone"},
		"pods cannot be read":                         {left(), unread(Object{Pod, "shop", ""}), false, "explain cannot tell whether a pod still uses it"},
		"pods elsewhere cannot be read":               {left(), unread(Object{Pod, "b", ""}), true, "to this claim alone"},
	} {
		for how, names := range map[string]bool{"named": true, "the nearest": false} {
			e := chain(wantsLeft(names, c.vol, c.change).view)
			command := strings.Join(e.commands(), "\n")
			if (command != "") != c.given || c.given && !strings.Contains(command, give) {
				t.Errorf("%s, %s: the command is %q, want one that gives it: %t", name, how, command, c.given)
			}
			if !told(e, Volume, c.told) {
				t.Errorf("%s, %s: of the volume it does not say %q: %+v", name, how, c.told, e.Links)
			}
		}
	}
}

// told says whether a link of a kind contains a text.
func told(e *Explanation, kind Kind, text string) bool {
	for _, l := range e.Links {
		if l.Object.Kind == kind && strings.Contains(l.Message, text) {
			return true
		}
	}
	return false
}

// A volume is not offered to a claim to which no binder would then bind it.
func TestOnlyWhatWouldBeBoundIsOffered(t *testing.T) {
	large := func(w *world, _ *volumeView) {
		w.claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")}
	}
	selects := func(w *world) {
		w.claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
		w.nearest()
	}
	fast := func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"disk": "fast"} }
	ofOther := func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "other" }
	pending := func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumePending }
	small := func(changes ...func(*corev1.PersistentVolume)) *world {
		return wantsLeft(false, freeVolume("small", "100Mi", changes...))
	}
	for _, c := range []answer{
		{"one that is named and too small", wantsLeft(true, left(), large), "it names volume left, which belongs to another claim", "when the volume is freed", ""},
		{"one that is named and of another class", wantsLeft(true, left(ofOther)), "it names volume left, which belongs to another claim", "when the volume is freed", ""},
		{"one that is left and has not the labels", with(wantsLeft(false, left()), selects), "no free one fits", "when a free PersistentVolume", ""},
		{"one that is left and has the labels", with(wantsLeft(false, left(fast)), selects), "no free one fits", "when a free PersistentVolume", "/spec/claimRef"},
		{"one that is too small", small(), "no free one fits", "when a free PersistentVolume", `"storage":"100Mi"`},
		{"one that is too small and has not the labels", with(small(), selects), "no free one fits", "when a free PersistentVolume", ""},
		{"one that is too small and has the labels", with(small(fast), selects), "no free one fits", "when a free PersistentVolume", `"storage":"100Mi"`},
		{"one that is too small and no binder has seen", small(pending), "no free one fits", "when a free PersistentVolume", ""},
	} {
		t.Run(c.name, c.check)
	}
}

// If the consumers of a volume cannot be read, there may be some.
func TestOfAVolumeWhoseStagesCannotBeReadNothingIsOffered(t *testing.T) {
	stages := Object{Kind: pavStage}
	pods := Object{Pod, "shop", ""}
	gone := func(w *world) *world {
		w.volumeView.Claim = nil
		return w
	}
	released := func() *world {
		return with(newWorld().bound().askedVolume(), func(w *world) {
			w.volume.Status.Phase, w.volume.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain
			gone(w)
		})
	}
	lent := func() *world { return gone(doomed(newWorld().bound().askedVolume(), foreign)) }
	used := func(w *world) *world {
		w.volumeView.Last = []*corev1.Pod{somePod("shop", "web", runs)}
		return w
	}
	const keeps = "policy Retain keeps the volume and its data, "
	for _, c := range []answer{
		{"one that is kept", released(), "policy Retain keeps the volume and its data until an administrator decides", "when an administrator decides", "/spec/claimRef"},
		{"one that is kept, of unknown stages", hides(released(), stages), keeps + "and explain cannot tell whether a node still uses it", "when no node uses it, which explain cannot tell, and an administrator decides", ""},
		{"one that is kept, of unknown pods", hides(released(), pods), keeps + "and explain cannot tell whether a pod still uses it", "when no pod uses it", ""},
		{"one that is kept and that a pod may use", used(released()), keeps + "which pod shop/web may still use", "when pod shop/web is gone, and an administrator decides", ""},
		{"one that is to go", lent(), "finalizer example.org/backup keeps it", "when its owner removes it", "/metadata/finalizers/0"},
		{"one that is to go, of unknown stages", hides(lent(), stages), "finalizer example.org/backup keeps it", "when its owner removes it", ""},
		{"one that is to go, of unknown pods", hides(lent(), pods), "finalizer example.org/backup keeps it", "when its owner removes it", ""},
		{"one that is to go and that a pod may use", used(lent()), "finalizer example.org/backup keeps it", "when its owner removes it", ""},
		{"one that is to be destroyed, of unknown stages", hides(with(released(), func(w *world) {
			w.record.Status.Phase = tarnv1.VolumeDeleting
			w.record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: stillStaged, Message: "it is staged on node n1"}}
		}), stages), "its storage cannot be destroyed yet: it is staged on node n1", "when it is unstaged", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestABinderHasTimeForTheLatestOfWhatItNeeds(t *testing.T) {
	late := func(d time.Duration) metav1.Time { return *ahead(-d) }
	manual := func(changes ...func(*corev1.PersistentVolume)) *world {
		return wantsLeft(false, freeVolume("fit", "1Gi", changes...))
	}
	for name, c := range map[string]struct {
		of   *world
		want string
	}{
		"all is old":               {manual(), "volume fit fits, but no binder responds"},
		"the volume is new":        {manual(func(v *corev1.PersistentVolume) { v.CreationTimestamp = late(time.Second) }), "it is being bound: volume fit fits"},
		"the volume is new enough": {manual(func(v *corev1.PersistentVolume) { v.CreationTimestamp = late(binderTime) }), "but no binder responds"},
		"the volume was just free": {manual(func(v *corev1.PersistentVolume) { v.Status.LastPhaseTransitionTime = ptr.To(late(time.Second)) }), "it is being bound: volume fit fits"},
		"the class is new":         {with(manual(), func(w *world) { w.class.CreationTimestamp = late(time.Second) }), "it is being bound: volume fit fits"},
		"the default class is new": {with(withoutClass(newWorld(), nil), func(w *world) {
			w.class.Annotations, w.class.CreationTimestamp = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}, late(time.Second)
		}), "it is being bound: it is to get the default class gold"},
	} {
		if e := chain(c.of.view); !strings.Contains(e.Verdict, c.want) {
			t.Errorf("%s: got %q, want %q in it", name, e.Verdict, c.want)
		}
	}
}
