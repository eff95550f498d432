package steppod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestAClaimIsHeldAgainstVolumeValidation(t *testing.T) {
	asks := func(modes ...corev1.PersistentVolumeAccessMode) func(*tarnv1.PavVolume) {
		return func(r *tarnv1.PavVolume) { r.Spec.AccessModes = modes }
	}
	sizes := func(least, most string) func(*tarnv1.PavVolume) {
		return func(r *tarnv1.PavVolume) {
			size := resource.MustParse(least)
			r.Spec.RequestedMinCapacity = size.Value()
			if most != "" {
				limit := resource.MustParse(most)
				r.Spec.RequestedMaxCapacity = ptr.To(limit.Value())
			}
		}
	}
	blocks := func(r *tarnv1.PavVolume) { r.Spec.VolumeMode = corev1.PersistentVolumeBlock }
	const once, oncePod, many = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany
	for _, c := range []struct {
		name    string
		section string
		record  func(*tarnv1.PavVolume)
		want    string // in the error; empty for none
	}{
		{"file systems by default", `{}`, func(*tarnv1.PavVolume) {}, ""},
		{"no block devices by default", `{}`, blocks, "can only provision volumes with volume mode Filesystem, the claim asks for Block"},
		{"block devices where it says so", `{"volumeModes": ["Block"]}`, blocks, ""},
		{"every access mode by default", `{}`, asks(once, oncePod, many, corev1.ReadOnlyMany), ""},
		{"the mode for one pod where it says so", `{"accessModes": ["ReadWriteOncePod"]}`, asks(oncePod), ""},
		{"one node is not one pod", `{"accessModes": ["ReadWriteOnce"]}`, asks(oncePod), "supporting access mode ReadWriteOnce, the claim asks for ReadWriteOncePod"},
		{"nor the other way about", `{"accessModes": ["ReadWriteOncePod"]}`, asks(once), "supporting access mode ReadWriteOncePod, the claim asks for ReadWriteOnce"},
		{"all that are asked for", `{"accessModes": ["ReadWriteOnce"]}`, asks(once, many), "the claim asks for ReadWriteMany"},
		{"no more than the most", `{"maxCapacity": "1Gi"}`, sizes("1025Mi", ""), "cannot provision volumes with capacity greater than 1073741824 bytes, the claim requests 1074790400"},
		{"the most itself", `{"maxCapacity": "1Gi"}`, sizes("1Gi", ""), ""},
		{"a limit above the least", `{"minCapacity": "1Gi"}`, sizes("1Mi", "1Gi"), ""},
		{"no limit below the least", `{"minCapacity": "1Gi"}`, sizes("1Mi", "1023Mi"), "capacity less than 1073741824 bytes, the claim's limit is 1072693248"},
		{"no limit at all", `{"minCapacity": "1Gi"}`, sizes("1Mi", ""), ""},
		{"limits that leave nothing", `{"minCapacity": "2Gi", "maxCapacity": "1Gi"}`, func(*tarnv1.PavVolume) {}, "minCapacity (2147483648) must not be greater than maxCapacity (1073741824)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim := testkit.Claim("ns", "data", "u1", "prov")
			record := testkit.Record(claim, "prov", tarnv1.VolumePending)
			c.record(record)
			p := testkit.Provisioner("prov")
			p.Spec.VolumeValidation = testkit.Section(c.section)
			prepared, err := (&Steps{}).PrepareValidation(t.Context(), p, record, claim, 1)
			switch {
			case c.want == "" && (err != nil || prepared.Pod != nil):
				t.Errorf("got %+v, %v, want neither pod nor error", prepared, err)
			case c.want != "" && (AsStepError(err) == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want a StepError with %q", err, c.want)
			}
		})
	}
}
