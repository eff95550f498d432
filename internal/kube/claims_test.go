package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func claimsIn(claims ...*corev1.PersistentVolumeClaim) client.Client {
	b := fake.NewClientBuilder().WithScheme(Scheme()).WithIndex(&corev1.PersistentVolumeClaim{}, ClaimsByVolume, VolumeNamed).
		WithIndex(&corev1.PersistentVolumeClaim{}, "uid", UIDOf)
	for _, claim := range claims {
		b = b.WithObjects(claim.DeepCopy())
	}
	return b.Build()
}

// claimOf is a claim that names a volume. Its UID is its name.
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
		cached, live claims // the cache contains live objects, too
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
		{name: "that has the uid it points at, under another name", vol: volume(released, referenceTo("slip", "a")), live: claims{claimOf("a", "vol", lost)}, want: "a"},
		{name: "that it was made for and that names it still", vol: volume(released, referenceTo("gone", "gone")), maker: referenceTo("a", "a"),
			live: claims{claimOf("a", "vol", lost)}, want: "a"},
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

// neighbour is another name in the same bucket of the index.
func neighbour(name string) string {
	for i := 0; ; i++ {
		if other := fmt.Sprint(name, "-", i); bucket(other) == bucket(name) {
			return other
		}
	}
}

func TestClaimsOfOneBucketAreToldApart(t *testing.T) {
	const name = "vol"
	other := neighbour(name)
	a, b := claimOf(name, name, corev1.ClaimBound), claimOf(other, other, corev1.ClaimBound)
	if !slices.Equal(VolumeNamed(a), VolumeNamed(b)) || !slices.Equal(UIDOf(a), UIDOf(b)) {
		t.Fatalf("%q and %q are in different buckets", name, other)
	}
	cached := claimsIn(a, b, claimOf("pending", "", corev1.ClaimPending))
	for _, want := range []string{name, other} {
		claims, err := ClaimsNaming(t.Context(), cached, want)
		if err != nil {
			t.Fatal(err)
		}
		if len(claims) != 1 || claims[0].Name != want {
			t.Errorf("volume %s is named by %d claims, want that of its name: %v", want, len(claims), claims)
		}
		claim, err := ClaimByUID(t.Context(), cached, "uid", types.UID(want))
		if err != nil {
			t.Fatal(err)
		}
		if nameOf(claim) != want {
			t.Errorf("found %q by uid %s", nameOf(claim), want)
		}
	}
	nobodys := neighbour(other)
	if claims, err := ClaimsNaming(t.Context(), cached, nobodys); err != nil || len(claims) > 0 {
		t.Errorf("found %v, %v for a volume that nobody names", claims, err)
	}
	if claim, err := ClaimByUID(t.Context(), cached, "uid", types.UID(nobodys)); err != nil || claim != nil {
		t.Errorf("found %q, %v by a uid that no claim has", nameOf(claim), err)
	}
}

func TestAVolumeHasNotTheHandleOfOneInItsBucket(t *testing.T) {
	const key = "shelf/a"
	other := strings.TrimPrefix(neighbour(key), "shelf/")
	cached := fake.NewClientBuilder().WithScheme(Scheme()).WithIndex(&corev1.PersistentVolume{}, VolumesByHandle, HandleOf)
	for _, handle := range []string{"a", other} {
		vol := sharedVolume("v-"+handle, "1Gi")
		vol.Spec.CSI.Driver, vol.Spec.CSI.VolumeHandle = "shelf", handle
		cached.WithObjects(vol)
	}
	store := cached.Build()
	names, err := Handles{Cached: store, Live: store}.Volumes(t.Context(), "shelf", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"v-a"}; !slices.Equal(names, want) {
		t.Errorf("volumes %q have the handle, want %q", names, want)
	}
}

func nameOf(claim *corev1.PersistentVolumeClaim) string {
	if claim == nil {
		return ""
	}
	return claim.Name
}
