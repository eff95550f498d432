package explain

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// released asks about a world's volume, which is Released although its claim exists.
func released(policy corev1.PersistentVolumeReclaimPolicy, changes ...func(*world)) *world {
	return with(newWorld().bound().askedVolume(), func(w *world) {
		w.volume.Status.Phase, w.volume.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, policy
		for _, change := range changes {
			change(w)
		}
	})
}

// A volume that was given to a claim belongs to that claim, though its phase is Released.
func TestAReleasedVolumeWhoseClaimIsThereIsNotOffered(t *testing.T) {
	const retain, destroy = corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete
	const seen, soon = ", and no binder has reconciled it since", "when a binder reconciles it"
	const anew = "when the claim is created again so that the volume fits; tarn explain claim shop/data shows how"
	given := func(w *world) { w.claim.Spec.VolumeName = "" }
	block := func(w *world) { w.volume.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }
	small := func(w *world) {
		w.volume.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	}
	exclusive := func(w *world) {
		w.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	other := func(w *world) { w.claim.Spec.VolumeName = "other" }
	gone := func(w *world) { w.volumeView.Claim = nil }
	reserved := func(w *world) { w.volume.Spec.ClaimRef.UID = "" }
	unclaimed := func(w *world) { w.volume.Spec.ClaimRef = nil }
	byHand := func(w *world) {
		w.volumeView.Record, w.volume.Annotations = nil, nil
	}
	forgotten := func(w *world) { w.volumeView.Record = nil }
	hidden := func(w *world) { gone(w); hides(w, Object{Claim, "shop", "data"}) }
	used := func(w *world) {
		gone(w)
		w.volumeView.Last = []*corev1.Pod{somePod("shop", "web", runs)}
	}
	for _, c := range []answer{
		{"it was handed over", released(retain, given), "is Released: it was given to claim shop/data" + seen, soon, ""},
		{"it was handed over, and is to be destroyed after", released(destroy, given, byHand), "is Released: it was given to claim shop/data" + seen, soon, ""},
		{"it was handed over, and has another mode", released(retain, given, block), "is Released: it was given to claim shop/data, which it does not fit: ", anew, ""},
		{"it was handed over, and is too small", released(retain, given, small), "it was given to claim shop/data, which it does not fit: volume \"pvc-claim-uid\" has 1Mi, the claim asks for 1Gi", anew, ""},
		{"it was handed over, and has other access modes", released(retain, given, exclusive), "which it does not fit: volume \"pvc-claim-uid\" has access modes ", anew, ""},
		{"its claim has it", released(retain), "is Released: claim shop/data uses it" + seen, soon, ""},
		{"its claim has another", released(retain, other), "is Released: claim shop/data has another volume" + seen, soon, ""},
		{"its claim has another, and it is to be destroyed", released(destroy, other), "is Released: claim shop/data has another volume, and its storage has to be destroyed", "", ""},
		{"its claim has another, and nobody destroys it", released(destroy, other, forgotten), "is Released: claim shop/data has another volume, and its PavVolume is gone", "when an administrator removes the storage", ""},
		{"it was freed", released(retain, unclaimed), "is Released: it no longer names a claim" + seen, soon, ""},
		{"it was reserved", released(retain, reserved), "is Released: it is reserved for claim shop/data" + seen, soon, ""},
		{"its claim is gone", released(retain, gone), "is Released: claim shop/data is gone, and policy Retain keeps", "when an administrator decides: the command frees it", "/spec/claimRef"},
		{"its claim cannot be read", released(retain, hidden), "is Released: its phase shows that claim shop/data is gone, and policy Retain keeps", "when an administrator decides", ""},
		{"its claim is gone, and nobody made its storage", released(destroy, gone, byHand), "no provisioner made its storage", "when an administrator removes the storage", "kubectl delete pv pvc-claim-uid"},
		{"its claim cannot be read, and nobody made its storage", released(destroy, hidden, byHand), "no provisioner made its storage", "when an administrator removes the storage", ""},
		{"a pod may use it, and nobody made its storage", released(destroy, used, byHand), "no provisioner made its storage", "when an administrator removes the storage", ""},
		{"a pod may use it, and how it was made is forgotten", released(destroy, used, forgotten), "its PavVolume is gone", "when an administrator removes the storage", ""},
	} {
		t.Run(c.name, c.check)
	}
	for policy, warns := range map[corev1.PersistentVolumeReclaimPolicy]bool{retain: false, destroy: true} {
		if e := chain(released(policy, given, small).view); told(e, Volume, "its data is deleted too, by policy Delete; to keep it, first: kubectl patch pv") != warns {
			t.Errorf("policy %s: what becomes of the data is told: %t, want %t: %+v", policy, !warns, warns, e.Links)
		}
	}
	if e := chain(released(retain, hidden).view); strings.Contains(e.next(), "command") {
		t.Errorf("it tells of a command that it does not give: %s", e.next())
	}
}

// The storage of a volume that was removed by force may still be in use.
func TestStorageIsNotDestroyedUnderWhoMayHaveIt(t *testing.T) {
	left := func(changes ...func(*world)) *world {
		return with(newWorld().bound().askedVolume(), func(w *world) {
			w.volumeView.Volume, w.volumeView.Claim = nil, nil
			for _, change := range changes {
				change(w)
			}
		})
	}
	names := func(o Object) func(*world) { return func(w *world) { w.volumeView.Named = []Object{o} } }
	const there, destroys = "it was removed by force, and its storage still exists", "kubectl delete pavvolume pvc-claim-uid"
	for _, c := range []answer{
		{"nobody has it", left(), there, "when an administrator decides; tarn explain claim shop/data", destroys},
		{"a node has it", left(func(w *world) { w.staged(func(*tarnv1.PavStage) {}) }), there + ", which a node still uses", "when no node uses it, and an administrator decides", ""},
		{"a pod may have it", left(func(w *world) { w.volumeView.Last = []*corev1.Pod{somePod("shop", "web", runs)} }), there + ", which pod shop/web may still use", "when pod shop/web is gone, and an administrator decides", ""},
		{"stages cannot be read", left(func(w *world) { hides(w, Object{Kind: pavStage}) }), there + ", and explain cannot tell whether a node still uses it", "", ""},
		{"pods cannot be read", left(func(w *world) { hides(w, Object{Pod, "shop", ""}) }), there + ", and explain cannot tell whether a pod still uses it", "", ""},
		{"its claim is there", left(func(w *world) { w.volumeView.Claim = w.claim }), there, "when an administrator decides", ""},
		{"another claim names it", left(names(Object{Claim, "shop", "other"})), there + ", which claim shop/other names", "when claim shop/other no longer names it, and an administrator decides", ""},
		{"another volume names it", left(names(Object{Volume, "", "by-hand"})), there + ", which volume by-hand names", "when volume by-hand no longer names it, and an administrator decides", ""},
		{"claims cannot be read", left(func(w *world) { hides(w, Object{Kind: Claim}) }), there, "when an administrator decides", ""},
		{"it cannot be read whether it is there", left(func(w *world) { hides(w, Object{Volume, "", "pvc-claim-uid"}) }), "its volume is made, and its PersistentVolume is about to be created", "", ""},
		{"other volumes cannot be read", left(func(w *world) { hides(w, Object{Kind: Volume}) }), there, "when an administrator decides", ""},
	} {
		t.Run(c.name, c.check)
	}
}

// A volume is given back to its claim only if no pods of other claims may use it.
func TestAVolumeIsNotGivenBackUnderWhoHasIt(t *testing.T) {
	const target, device = "/var/lib/kubelet/pods/pod-uid/volumes/kubernetes.io~csi/pvc-claim-uid/mount", "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-claim-uid/pod-uid"
	robbed := func(changes ...func(*world)) *world {
		return with(newWorld().bound(), func(w *world) {
			w.claim.Status.Phase, w.volumeView.Claim = corev1.ClaimLost, nil
			w.volume.Spec.ClaimRef.Name, w.volume.Spec.ClaimRef.UID = "other", "other-uid"
			for _, change := range changes {
				change(w)
			}
		})
	}
	at := func(targets ...string) func(*world) {
		return func(w *world) { w.staged(func(g *tarnv1.PavStage) { g.Status.Node.Targets = targets }) }
	}
	own := func(w *world) { w.claimView.Users = []user{{Pod: somePod("shop", "web", runs)}} }
	for _, c := range []struct {
		name   string
		of     *world
		given  bool
		wantOf string
	}{
		{"nobody has it", robbed(), true, "the command gives the volume back"},
		{"its own pod has it", robbed(own, at(target)), true, "the command gives the volume back"},
		{"its own pod has it as a device", robbed(own, at(device)), true, "the command gives the volume back"},
		{"its own pod has it, and another", robbed(own, at(target, strings.Replace(target, "pod-uid", "other-pod", 1))), false, "it holds data, which a node still uses"},
		{"a node has it, and it cannot be told for whom", robbed(own, at()), false, "it holds data, which a node still uses"},
		{"a node has it for another", robbed(at(target)), false, "it holds data, which a node still uses"},
		{"another pod may have it", robbed(func(w *world) { w.volumeView.Last = []*corev1.Pod{somePod("shop", "theirs", runs)} }), false, "it holds data, which pod shop/theirs may still use"},
		{"stages cannot be read", robbed(func(w *world) { hides(w, Object{Kind: pavStage}) }), false, "explain cannot tell whether a node still uses it"},
		{"it names a claim of another namespace", robbed(func(w *world) { w.volume.Spec.ClaimRef.Namespace = "b" }), false, "its data belongs to namespace b, and explain does not give it to namespace shop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := chain(c.of.view)
			if command := strings.Join(e.commands(), "\n"); c.given != strings.Contains(command, `{"op":"test","path":"/spec/claimRef/uid","value":"other-uid"}`) || !c.given && command != "" {
				t.Errorf("the command is %q, want one that gives it back: %t", command, c.given)
			}
			if !told(e, Volume, c.wantOf) || !strings.Contains(e.Verdict, "names another claim") {
				t.Errorf("of the volume it does not say %q: %s, %+v", c.wantOf, e.Verdict, e.Links)
			}
		})
	}
}

// podsAlone is a cluster with pods and nothing else.
type podsAlone struct {
	client.Reader
	pods []corev1.Pod
}

func (p podsAlone) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*corev1.PodList).Items = p.pods
	return nil
}

func TestWhoMayStillHaveAVolumeIsReadWhereverItsClaimIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   int
	}{
		"it is to be destroyed":   {func(w *world) { w.volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete }, 1},
		"it is kept":              {func(w *world) { w.volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain }, 1},
		"it was removed by force": {func(w *world) { w.volumeView.Volume = nil }, 1},
		"its claim is there":      {func(w *world) { w.volumeView.Claim = w.claim }, 0},
		"it was never bound":      {func(w *world) { w.volume.Spec.ClaimRef.UID = "" }, 0},
	} {
		w := newWorld().bound()
		w.volumeView.Claim = nil
		c.change(w)
		g := &gatherer{Source: Source{Client: podsAlone{pods: []corev1.Pod{*somePod("shop", "web", runs), *somePod("shop", "unplaced", unscheduled)}}}, view: w.view}
		if got := g.lastUsers(t.Context(), w.volumeView); len(got) != c.want || len(got) > 0 && got[0].Name != "web" {
			t.Errorf("%s: got %d pods, want %d", name, len(got), c.want)
		}
	}
}

// named is a cluster in which claims and volumes name what is left of a volume.
type named struct {
	client.Reader
}

func (named) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	switch list := into.(type) {
	case *corev1.PersistentVolumeClaimList:
		for _, uid := range []types.UID{"claim-uid", "other-uid"} {
			claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid}}
			claim.Spec.VolumeName = "pvc-claim-uid"
			list.Items = append(list.Items, claim)
		}
		list.Items = append(list.Items, corev1.PersistentVolumeClaim{})
	case *corev1.PersistentVolumeList:
		for _, handle := range []string{"handle", "another"} {
			list.Items = append(list.Items, freeVolume("of-"+handle, "1Gi", func(v *corev1.PersistentVolume) {
				v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "gold", VolumeHandle: handle}
			}))
		}
		list.Items = append(list.Items, freeVolume("local", "1Gi"))
	}
	return nil
}

func TestWhoElseNamesWhatIsLeftOfAVolumeIsRead(t *testing.T) {
	w := newWorld().bound()
	g := &gatherer{Source: Source{Client: named{}}, view: w.view}
	if got, want := g.naming(t.Context(), w.record), []Object{{Claim, "shop", "other-uid"}, {Volume, "", "of-handle"}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
