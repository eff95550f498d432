package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func claimsIn(claims ...*corev1.PersistentVolumeClaim) client.Client {
	b := fake.NewClientBuilder().WithScheme(Scheme()).WithIndex(&corev1.PersistentVolumeClaim{}, ClaimsByVolume, VolumeNamed)
	for _, claim := range claims {
		b = b.WithObjects(claim.DeepCopy())
	}
	return b.Build()
}

// claimOf is a claim, its uid its name, that names a volume.
func claimOf(name, volume string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c.Spec.VolumeName, c.Status.Phase = volume, phase
	return c
}

func referenceTo(name, uid string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID(uid)}
}

func TestAVolumeIsKeptForAClaim(t *testing.T) {
	const bound, pending, lost = corev1.ClaimBound, corev1.ClaimPending, corev1.ClaimLost
	const released, available = corev1.VolumeReleased, corev1.VolumeAvailable
	volume := func(phase corev1.PersistentVolumePhase, ref *corev1.ObjectReference) *corev1.PersistentVolume {
		vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "vol"}}
		vol.Spec.ClaimRef, vol.Status.Phase = ref, phase
		return vol
	}
	type claims = []*corev1.PersistentVolumeClaim
	for _, c := range []struct {
		name         string
		vol          *corev1.PersistentVolume
		maker        *corev1.ObjectReference
		cached, live claims // the cache has what is live, too
		want         string
	}{
		{name: "that it points at", vol: volume(released, referenceTo("a", "a")), live: claims{claimOf("a", "vol", bound)}, want: "a"},
		{name: "that it points at, which names none yet", vol: volume(available, referenceTo("a", "a")), live: claims{claimOf("a", "", pending)}, want: "a"},
		{name: "that it points at by name alone", vol: volume(available, referenceTo("a", "")), live: claims{claimOf("a", "", pending)}, want: "a"},
		{name: "not that it points at, which has another", vol: volume(released, referenceTo("a", "a")), live: claims{claimOf("a", "other", bound)}},
		{name: "not another of the name", vol: volume(released, referenceTo("a", "old")), live: claims{claimOf("a", "", pending)}},
		{name: "that names it after the claimRef was cleared", vol: volume(available, nil), live: claims{claimOf("a", "vol", bound)}, want: "a"},
		{name: "that names it after the volume was removed by force", live: claims{claimOf("a", "vol", lost)}, want: "a"},
		{name: "that it was made for, where it was removed by force", maker: referenceTo("a", "a"), live: claims{claimOf("a", "", pending)}, want: "a"},
		{name: "that names it, and not the one it was made for, which has another", maker: referenceTo("a", "a"),
			live: claims{claimOf("a", "other", bound), claimOf("b", "vol", lost)}, want: "b"},
		{name: "not the one it was made for, where it points at another", vol: volume(released, referenceTo("b", "b")), maker: referenceTo("a", "a"),
			live: claims{claimOf("a", "", pending)}},
		{name: "that is bound to it, whatever it points at", vol: volume(released, referenceTo("gone", "gone")), live: claims{claimOf("b", "vol", bound)}, want: "b"},
		{name: "not one that merely names what was another's", vol: volume(released, referenceTo("gone", "gone")), live: claims{claimOf("b", "vol", pending)}},
		{name: "not one that says it was bound to what is another's", vol: volume(released, referenceTo("gone", "gone")), live: claims{claimOf("b", "vol", lost)}},
		{name: "not one that the cache alone has", vol: volume(available, nil), cached: claims{claimOf("a", "vol", bound)}},
		{name: "not another of the name that the cache has", vol: volume(available, nil), cached: claims{claimOf("a", "vol", bound)}, live: claims{claimOf("a", "", pending)}},
		{name: "not one that names another", vol: volume(available, nil), live: claims{claimOf("a", "other", bound)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cached := c.live
			if c.cached != nil {
				cached = c.cached
			}
			got, err := Claims{Cached: claimsIn(cached...), Live: claimsIn(c.live...)}.Keeping(t.Context(), "vol", c.vol, c.maker)
			if err != nil {
				t.Fatal(err)
			}
			if name := nameOf(got); name != c.want {
				t.Errorf("kept for %q, want %q", name, c.want)
			}
		})
	}
}

func nameOf(claim *corev1.PersistentVolumeClaim) string {
	if claim == nil {
		return ""
	}
	return claim.Name
}
