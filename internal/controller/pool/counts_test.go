package pool

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

func TestAReleasedVolumeIsCountedByWhatBecomesOfIt(t *testing.T) {
	s := set(0, 9)
	asks := func(vol *corev1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycle, string(tarnv1.RecycleZero))
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	held := func(vol *corev1.PersistentVolume) { volume.Hold(vol, "1h") }
	policy := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(vol *corev1.PersistentVolume) { vol.Spec.PersistentVolumeReclaimPolicy = p }
	}
	scrubbed := func(vol *corev1.PersistentVolume) {
		vol.UID = "uid"
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: testNamespace, Name: tarnv1.ScrubPrefix + "uid", UID: "scrub"}
	}
	gone := in(corev1.VolumeReleased)
	for _, c := range []struct {
		name   string
		vol    *corev1.PersistentVolume
		change func(*View)
		want   counts
	}{
		{"kept by its policy", volumeOf(s, "a", boundTo("x"), gone, policy(corev1.PersistentVolumeReclaimRetain)), nil, counts{total: 1, released: 1}},
		{"to be deleted", volumeOf(s, "a", boundTo("x"), gone, asks, policy(corev1.PersistentVolumeReclaimDelete)), nil, counts{total: 1, released: 1}},
		{"of policy Recycle", volumeOf(s, "a", boundTo("x"), gone, policy(corev1.PersistentVolumeReclaimRecycle)), nil, counts{total: 1, recycling: 1}},
		{"to be recycled by its own word", volumeOf(s, "a", boundTo("x"), gone, asks), nil, counts{total: 1, recycling: 1}},
		{"to be recycled by the word of its class", volumeOf(s, "a", boundTo("x"), gone, policy(corev1.PersistentVolumeReclaimRetain)), func(v *View) {
			metav1.SetMetaDataAnnotation(&v.Class.ObjectMeta, tarnv1.AnnotationRecycle, string(tarnv1.RecycleFiles))
		}, counts{total: 1, recycling: 1}},
		{"in the trash before it is recycled", volumeOf(s, "a", boundTo("x"), gone, asks, held), nil, counts{total: 1, released: 1}},
		{"bound to its scrub claim", volumeOf(s, "a", scrubbed, in(corev1.VolumeBound), asks), nil, counts{total: 1, recycling: 1}},
		{"of its scrub claim that has gone", volumeOf(s, "a", scrubbed, gone, asks), nil, counts{total: 1, recycling: 1}},
		{"that could not be recycled", volumeOf(s, "a", boundTo("x"), in(corev1.VolumeFailed), asks), nil, counts{total: 1, failed: 1}},
		{"bound to a claim of that name elsewhere", volumeOf(s, "a", scrubbed, func(vol *corev1.PersistentVolume) { vol.Spec.ClaimRef.Namespace = "shop" }, in(corev1.VolumeBound)), nil, counts{total: 1, used: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view(s, c.vol)
			if c.change != nil {
				c.change(v)
			}
			if got := count(v); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
