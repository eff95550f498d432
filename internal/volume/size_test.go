package volume_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"tarn.dev/tarn/internal/volume"
)

// enormous are quantities that the API server accepts and that cannot be written out as numbers.
var enormous = []string{"1e2000000000", "7e30000000", "1e50", strings.Repeat("9", 60)}

func claimAsking(size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
	}}
}

func volumeHaving(size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
	}}
}

// With the exponent written out, this test takes longer than go test allows.
func TestAnEnormousRequestFitsNoVolume(t *testing.T) {
	for _, asked := range enormous {
		for _, has := range append([]string{"1Gi", "7Ei"}, enormous...) {
			if m := volume.Holds(volumeHaving(has), claimAsking(asked)); m != volume.MisfitCapacity {
				t.Errorf("a volume of %.40s and a claim of %.40s: %q, want %q", has, asked, m, volume.MisfitCapacity)
			}
		}
		if text := volume.Explain(volume.MisfitCapacity, volumeHaving(asked), claimAsking(asked)); len(text) > 200 {
			t.Errorf("explaining %.40s takes %d characters", asked, len(text))
		}
	}
}

func TestSizesOfAllRealLengthsAreComparedExactly(t *testing.T) {
	for _, c := range []struct {
		has, asked string
		want       volume.Misfit
	}{
		{"1Gi", "1Gi", volume.Fits},
		{"9223372036854775807", "9223372036854775808", volume.MisfitCapacity},
		{"9223372036854775808", "9223372036854775808", volume.Fits},
		{"1e39", "1000000000000000000000000000000000000000", volume.Fits},
		{"1e39", "1000000000000000000000000000000000000001", volume.MisfitCapacity},
		{"1500m", "1501m", volume.MisfitCapacity},
		{"1e50", "1e39", volume.Fits},
		{"1e39", "1n", volume.Fits},
	} {
		if got := volume.Holds(volumeHaving(c.has), claimAsking(c.asked)); got != c.want {
			t.Errorf("a volume of %s and a claim of %s: %q, want %q", c.has, c.asked, got, c.want)
		}
	}
}

func TestAnEnormousQuantityIsTheLargestNumberOfBytes(t *testing.T) {
	for _, text := range enormous {
		if got := volume.Bytes(resource.MustParse(text)); got != math.MaxInt64 {
			t.Errorf("Bytes(%.40s) = %d, want %d", text, got, int64(math.MaxInt64))
		}
		if got := volume.Bytes(resource.MustParse("-" + text)); got != math.MinInt64 {
			t.Errorf("Bytes(-%.40s) = %d, want %d", text, got, int64(math.MinInt64))
		}
	}
}

func TestParseCapacityRefusesWhatIsBeyondAllSizes(t *testing.T) {
	for _, text := range append([]string{"1e-30000000", "1E+30000000", "1e99999999999999999999", fmt.Sprintf("0.%0100d", 1)}, enormous...) {
		if got, err := volume.ParseCapacity(text, volume.RoundUp); err == nil || len(err.Error()) > 200 {
			t.Errorf("ParseCapacity(%.40s) = %d, %.300v, want a short error", text, got, err)
		}
	}
}
