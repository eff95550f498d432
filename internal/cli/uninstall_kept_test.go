package cli

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestAVolumeWhoseRecordGoesSaysThatItWasMade(t *testing.T) {
	saysRecord := func(uid string) testkit.With[*corev1.PersistentVolume] {
		return func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{tarnv1.AnnotationRecord: uid}
		}
	}
	gone := func(in *installed) { in.records = nil }
	for _, c := range []struct {
		name string
		in   *installed
		want string
	}{
		{"its record is there", whatIs(made(saysRecord("record-u"))), "volume-pvc-u"},
		{"its record went, and it has said so since", whatIs(made(saysRecord("record-u"), func(v *corev1.PersistentVolume) {
			v.Annotations[tarnv1.AnnotationKept] = "volume-pvc-u"
		}), gone), "volume-pvc-u"},
		{"it was restored from a backup, without its record", whatIs(made(saysRecord("record-u")), gone), ""},
		{"it was restored from a backup, beside another record", whatIs(made(saysRecord("another"))), ""},
		{"it was written by hand", whatIs(made(), gone), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := fake.NewClientBuilder().WithScheme(kube.Scheme())
			for i := range c.in.volumes {
				b = b.WithObjects(c.in.volumes[i].DeepCopy())
			}
			for i := range c.in.records {
				b = b.WithObjects(c.in.records[i].DeepCopy())
			}
			u := &uninstaller{client: b.Build(), keep: true}
			vol := &c.in.volumes[0]
			if err := u.client.Get(t.Context(), client.ObjectKeyFromObject(vol), vol); err != nil {
				t.Fatal(err)
			}
			if err := u.letVolumesGo(t.Context(), c.in); err != nil {
				t.Fatal(err)
			}
			left := &corev1.PersistentVolume{}
			if err := u.client.Get(t.Context(), client.ObjectKeyFromObject(vol), left); err != nil {
				t.Fatal(err)
			}
			if got := left.Annotations[tarnv1.AnnotationKept]; got != c.want {
				t.Errorf("%s is %q, want %q", tarnv1.AnnotationKept, got, c.want)
			}
		})
	}
}
