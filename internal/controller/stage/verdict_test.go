package stage

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAVolumeWasMadeForAClaimByItsRecordAndNotByItsWord(t *testing.T) {
	record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-of-record"}}
	w := newWorld(t, append(subjects(), record)...)
	for name, c := range map[string]struct {
		volume string
		says   map[string]string
		want   bool
	}{
		"it has a record":                           {"pv", map[string]string{tarnv1.AnnotationRecord: "uid-of-record"}, true},
		"it says nothing":                           {"pv", nil, false},
		"it names its provisioner alone":            {"pv", map[string]string{"pv.kubernetes.io/provisioned-by": "slow"}, false},
		"its record was made anew":                  {"pv", map[string]string{tarnv1.AnnotationRecord: "uid-of-old"}, false},
		"it was copied under another name":          {"copy", map[string]string{tarnv1.AnnotationRecord: "uid-of-record"}, false},
		"it was kept when Tarn was removed":         {"kept", map[string]string{tarnv1.AnnotationRecord: "uid-of-old", tarnv1.AnnotationKept: "uid-of-pv"}, true},
		"it was kept, and restored from a backup":   {"kept", map[string]string{tarnv1.AnnotationRecord: "uid-of-old", tarnv1.AnnotationKept: "uid-of-old-pv"}, false},
		"it says that it was kept and nothing else": {"kept", map[string]string{tarnv1.AnnotationKept: "uid-of-pv"}, false},
	} {
		vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: c.volume, UID: "uid-of-pv", Annotations: c.says}}
		if got, err := w.r.made(t.Context(), vol); err != nil || got != c.want {
			t.Errorf("%s: %t (%v), want %t", name, got, err, c.want)
		}
	}
}
