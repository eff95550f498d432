package volume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func says(text string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: "x", Annotations: map[string]string{tarnv1.AnnotationRetention: text}}
}

func TestARetentionIsThatOfWhoeverSaysItFirst(t *testing.T) {
	set := func(text, pool string) tarnv1.PersistentVolumeSet {
		return tarnv1.PersistentVolumeSet{ObjectMeta: says(text), Spec: tarnv1.PersistentVolumeSetSpec{Selector: map[string]string{"pool": pool}}}
	}
	class := &storagev1.StorageClass{ObjectMeta: says("3h")}
	for _, c := range []struct {
		name  string
		own   string
		sets  []tarnv1.PersistentVolumeSet
		class *storagev1.StorageClass
		want  string
		wrong string
	}{
		{name: "the volume", own: "1h", sets: []tarnv1.PersistentVolumeSet{set("2h", "a")}, class: class, want: "1h"},
		{name: "the volume, which says none", own: "0s", class: class, want: "0s"},
		{name: "of its sets the one that says most", sets: []tarnv1.PersistentVolumeSet{set("2h", "a"), set("4h", "a"), set("1h", "a")}, class: class, want: "4h"},
		{name: "not a set that does not select it", sets: []tarnv1.PersistentVolumeSet{set("2h", "b")}, class: class, want: "3h"},
		{name: "the class", class: class, want: "3h"},
		{name: "a parameter of the class", class: &storagev1.StorageClass{Parameters: map[string]string{tarnv1.AnnotationRetention: "5h"}}, want: "5h"},
		{name: "nobody", class: &storagev1.StorageClass{}},
		{name: "a set that cannot be understood", sets: []tarnv1.PersistentVolumeSet{set("9h", "a"), set("soon", "a")}, class: class, want: "soon", wrong: "PersistentVolumeSet x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "a"}}}
			if c.own != "" {
				v.Annotations = says(c.own).Annotations
			}
			got := RetentionOf(v, c.sets, c.class)
			if got.Text != c.want || got.Unknown || (got.Wrong == "") != (c.wrong == "") || !strings.Contains(got.Wrong, c.wrong) {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
	if got := RetentionOf(&corev1.PersistentVolume{}, nil, nil); !got.Unknown || got.Wanted() {
		t.Errorf("of a class that is gone: got %+v, want it unknown", got)
	}
}

func TestAReleasedVolumeIsKeptAsLongAsItsRetentionSays(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	hour := Retention{Text: "1h", Time: time.Hour}
	for _, c := range []struct {
		name   string
		r      Retention
		change func(*corev1.PersistentVolume)
		// want is until when the volume is kept. Zero means that it is not kept, always that it is
		// kept for ever.
		want   time.Time
		always bool
	}{
		{name: "counted from its release", r: hour, want: now.Add(30 * time.Minute)},
		{name: "not longer", r: Retention{Text: "30m", Time: 30 * time.Minute}},
		{name: "counted from now where it does not tell", r: hour, change: func(v *corev1.PersistentVolume) { v.Status.LastPhaseTransitionTime = nil }, want: now.Add(time.Hour)},
		{name: "for ever where it cannot be understood", r: Retention{Wrong: "soon is no time"}, always: true},
		{name: "not where nobody says anything", r: Retention{Unknown: true}},
		{name: "not after it was in the trash", r: hour, change: func(v *corev1.PersistentVolume) { Trash(v, now) }},
		{name: "not where it points at no claim", r: hour, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }},
		{name: "not where it points at a claim yet to come", r: hour, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }},
		{name: "not where it was a claim's of Tarn's own", r: hour, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "tarn-system" }},
		{name: "not where it is being added to a pool", r: hour, change: func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{tarnv1.AnnotationPoolFilling: "u"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "vol"}}
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "u"}
			v.Status.LastPhaseTransitionTime = &metav1.Time{Time: now.Add(-30 * time.Minute)}
			if c.change != nil {
				c.change(v)
			}
			why, until := KeptBy(v, c.r, "tarn-system", now)
			if (why != "") != (c.always || !c.want.IsZero()) || !until.Equal(c.want) {
				t.Errorf("kept until %s, %q; want %s", until, why, c.want)
			}
		})
	}
}
