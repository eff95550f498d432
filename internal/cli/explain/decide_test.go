package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// byHandVolume asks about a volume that was written by hand and names claim shop/data.
func byHandVolume(phase corev1.PersistentVolumePhase, uid types.UID, claim *corev1.PersistentVolumeClaim, changes ...func(*world)) *world {
	return with(newWorld().askedVolume(), func(w *world) {
		vol := freeVolume("mine", "1Gi", forData(uid))
		vol.Status.Phase = phase
		w.view.Asked = Object{Volume, "", "mine"}
		*w.volumeView = volumeView{Name: "mine", Volume: &vol, Claim: claim}
		w.volume = &vol
		for _, change := range changes {
			change(w)
		}
	})
}

func policy(p corev1.PersistentVolumeReclaimPolicy) func(*world) {
	return func(w *world) { w.volume.Spec.PersistentVolumeReclaimPolicy = p }
}

// claimOf returns claim shop/data with a uid. names is its volume, if any.
func claimOf(uid types.UID, names string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	claim := testkit.Claim("shop", "data", uid, "gold")
	claim.Spec.VolumeName, claim.Status.Phase = names, phase
	return claim
}

func TestAVolumeOfAClaimThatIsAnotherNowSaysSo(t *testing.T) {
	const another = "it names claim shop/data by UID old, and the claim that has this name now has another UID (new)"
	now := claimOf("new", "", corev1.ClaimPending)
	names := claimOf("new", "mine", corev1.ClaimPending)
	claimants := func(claims ...*corev1.PersistentVolumeClaim) func(*world) {
		return func(w *world) { w.volumeView.Claimants = claims }
	}
	named := claimOf("other-uid", "mine", corev1.ClaimPending)
	named.Name = "other"
	large := names.DeepCopy()
	large.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	const kept, frees = ", and policy Retain keeps the volume and its data until an administrator decides", `{"op":"remove","path":"/spec/claimRef"}`
	gives := func(name, uid string) string {
		return `kubectl patch pv mine --type=json -p '[{"op":"test","path":"/spec/claimRef/uid","value":"old"},{"op":"replace","path":"/spec/claimRef","value":` +
			`{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"shop","name":"` + name + `","uid":"` + uid + `"}}]'`
	}
	const byName = kept + "; claim shop/data names it by spec.volumeName"
	for _, c := range []answer{
		{"a claim that is gone", byHandVolume(corev1.VolumeReleased, "old", nil), "claim shop/data is gone" + kept, "when an administrator decides: the command frees it for any claim", frees},
		{"a claim of another uid", byHandVolume(corev1.VolumeReleased, "old", now), another + kept, "when an administrator decides: the command frees it for any claim", frees},
		{"one that names it", byHandVolume(corev1.VolumeReleased, "old", names, claimants(names)), another + byName, "when an administrator decides: the command reserves it for that claim alone", gives("data", "new")},
		{"one of another name that names it", byHandVolume(corev1.VolumeReleased, "old", nil, claimants(named)),
			"claim shop/data is gone" + kept + "; claim shop/other names it by spec.volumeName", "when an administrator decides: the command reserves it for that claim alone", gives("other", "other-uid")},
		{"one that names it and does not fit", byHandVolume(corev1.VolumeReleased, "old", large, claimants(large)), another + byName, "when an administrator decides", ""},
		{"two that name it", byHandVolume(corev1.VolumeReleased, "old", names, claimants(names, named)), kept + "; claims shop/data, shop/other name it", "when an administrator decides which claim gets it", ""},
		{"one that nobody may list", hides(byHandVolume(corev1.VolumeReleased, "old", now), Object{Claim, "shop", ""}), another + kept, "when an administrator decides", ""},
		{"one of no namespace", byHandVolume(corev1.VolumeReleased, "old", nil, func(w *world) { w.volume.Spec.ClaimRef.Namespace = "" }),
			"it names claim data without a namespace, as spec.claimRef.namespace is missing" + kept, "when an administrator decides", ""},
		{"a volume that is Bound", byHandVolume(corev1.VolumeBound, "old", now), another + ", and no binder has reconciled it since", "when a binder reconciles it", ""},
		{"a volume that is to be destroyed", byHandVolume(corev1.VolumeReleased, "old", now, policy(corev1.PersistentVolumeReclaimDelete)), another + ", and nothing says which provisioner made its storage", "", ""},
	} {
		t.Run(c.name, c.check)
	}
}

func TestAVolumeThatIsReservedInVainIsNotCalledHealthy(t *testing.T) {
	const reserved, changed = "volume mine is Available: it is reserved for claim shop/data", "spec.claimRef of the volume is changed"
	block := claimOf("new", "", corev1.ClaimPending)
	block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	for _, c := range []answer{
		{"its claim is bound to another", byHandVolume(corev1.VolumeAvailable, "", claimOf("new", "other", corev1.ClaimBound)), reserved + ", which has another volume, other",
			"when " + changed + ": the claim keeps the volume that it has", ""},
		{"its claim is bound to another, by uid", byHandVolume(corev1.VolumeAvailable, "new", claimOf("new", "other", corev1.ClaimBound)), reserved + ", which has another volume, other", "when a binder reconciles it", ""},
		{"its claim names another", byHandVolume(corev1.VolumeAvailable, "", claimOf("new", "other", corev1.ClaimPending)), reserved + ", which names another volume, other", "when the claim is created again without spec.volumeName, or " + changed, ""},
		{"its claim asks for another mode", byHandVolume(corev1.VolumeAvailable, "", block), reserved + `, which it does not fit: volume "mine" has volumeMode Filesystem, the claim asks for Block`, "when the claim is created again", ""},
		{"its claim's namespace is not there", byHandVolume(corev1.VolumeAvailable, "", nil, func(w *world) { w.volumeView.NoNamespace = true }), reserved + ", and there is no namespace shop", "when namespace shop is created, and the claim in it, or " + changed, ""},
		{"its claim is another now", byHandVolume(corev1.VolumeAvailable, "old", claimOf("new", "", corev1.ClaimPending)), reserved + " by UID old, and the claim that has this name now has another UID (new)", "when a binder reconciles it", ""},
		{"it names no namespace", byHandVolume(corev1.VolumeAvailable, "", nil, func(w *world) { w.volume.Spec.ClaimRef.Namespace = "" }),
			`it is reserved for a claim that cannot exist: its spec.claimRef has namespace "" and name "data"`, "when spec.claimRef has a namespace and a name, or is removed", ""},
		{"it names nothing", byHandVolume(corev1.VolumeAvailable, "", nil, func(w *world) { *w.volume.Spec.ClaimRef = corev1.ObjectReference{} }),
			`it is reserved for a claim that cannot exist: its spec.claimRef has namespace "" and name ""`, "or is removed", ""},
	} {
		t.Run(c.name, c.check)
	}
	for name, w := range map[string]*world{
		"a claim that is to come":         byHandVolume(corev1.VolumeAvailable, "", nil),
		"a claim that fits":               byHandVolume(corev1.VolumeAvailable, "", claimOf("new", "", corev1.ClaimPending)),
		"a claim that names it":           byHandVolume(corev1.VolumeAvailable, "", claimOf("new", "mine", corev1.ClaimPending)),
		"a claim that nobody may look at": hides(byHandVolume(corev1.VolumeAvailable, "", nil), Object{Claim, "shop", "data"}),
	} {
		if e := chain(w.view); !e.Healthy {
			t.Errorf("%s: %s", name, e.Verdict)
		}
	}
}

func TestWhatNoProvisionerHasMadeIsNotOfferedToBeDestroyed(t *testing.T) {
	const destroy, rid = `to have it destroyed instead: kubectl patch pv mine -p '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}'`,
		"to delete only the PersistentVolume and keep its storage and data: kubectl delete pv mine"
	by := func(name string) func(*world) {
		return func(w *world) { w.volume.Annotations = map[string]string{volume.AnnProvisionedBy: name} }
	}
	for name, want := range map[string]string{"": rid, "kubernetes.io/rbd": rid, "csi.example.org": destroy, hostPath: destroy} {
		e := chain(byHandVolume(corev1.VolumeReleased, "old", nil, by(name)).view)
		if next := e.next(); !strings.HasSuffix(next, want) {
			t.Errorf("made by %q: %q, want %q", name, next, want)
		}
	}
	failed := func(changes ...func(*world)) *world {
		return byHandVolume(corev1.VolumeFailed, "old", nil, append([]func(*world){policy(corev1.PersistentVolumeReclaimDelete), func(w *world) {
			w.volume.Status.Message = "no deleter"
			w.volumeView.Events = []corev1.Event{{Reason: "VolumeFailedDelete", Message: "no deleter", LastTimestamp: began}}
		}}, changes...)...)
	}
	stillReleased := func(w *world) { w.volume.Status.Phase = corev1.VolumeReleased }
	used := func(w *world) { w.volumeView.Last = []*corev1.Pod{somePod("shop", "web", runs)} }
	const is, again, never = "is Failed: no deleter", "when its provisioner retries; last tried", "when an administrator removes the storage by hand, and then the volume: no provisioner made it, so none retries"
	for _, c := range []answer{
		{"nobody made it", failed(), is, never, "kubectl delete pv mine"},
		{"nobody made it, and a pod may use it", failed(used), is, never, ""},
		{"nobody made it, and it is kept", failed(policy(corev1.PersistentVolumeReclaimRetain)), is, again, ""},
		{"somebody made it", failed(by("csi.example.org")), is, again, ""},
		{"nobody made it, and it is still Released", failed(stillReleased), "is Released: its storage could not be destroyed: no deleter", never, "kubectl delete pv mine"},
		{"somebody made it, and it is still Released", failed(stillReleased, by("csi.example.org")), "its storage could not be destroyed: no deleter", "when its provisioner retries", ""},
	} {
		t.Run(c.name, c.check)
	}
	if e := chain(failed().view); !told(e, Volume, "the command deletes only the PersistentVolume: its storage and data stay") {
		t.Errorf("what stays is not told: %+v", e.Links)
	}
}
