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

func TestParseCapacityReadsQuantitiesAndRounds(t *testing.T) {
	for _, c := range []struct {
		name, text string
		rounding   volume.Rounding
		want       int64
	}{
		{"plain bytes", "42", volume.RoundDown, 42},
		{"binary suffix", "1Gi", volume.RoundDown, 1 << 30},
		{"decimal suffix", "1k", volume.RoundDown, 1000},
		{"capital K, as the original takes it", "2K", volume.RoundDown, 2000},
		{"exponent", "1e3", volume.RoundDown, 1000},
		{"one exbibyte", "1Ei", volume.RoundDown, 1 << 60},
		{"a fraction goes down", "1500m", volume.RoundDown, 1},
		{"a fraction goes up", "1500m", volume.RoundUp, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := volume.ParseCapacity(c.text, c.rounding)
			if err != nil || got != c.want {
				t.Errorf("ParseCapacity(%q) = %d, %v, want %d", c.text, got, err, c.want)
			}
			if again, err := volume.ParseCapacity(volume.Size(got), volume.RoundDown); err != nil || again != got {
				t.Errorf("%d is written %s, which is %d, %v", got, volume.Size(got), again, err)
			}
		})
	}
}

func TestParseCapacityRefusesWhatIsNoSize(t *testing.T) {
	for text, wantPart := range map[string]string{
		"":       "not a size",
		"ten":    "not a size",
		"1 Gi":   "not a size",
		"0":      "must be positive",
		"-1Gi":   "must be positive",
		"100m":   "must be positive",
		"1e30":   "too large",
		"1Gi\n":  "not a size",
		"0x10Gi": "not a size",
	} {
		if got, err := volume.ParseCapacity(text, volume.RoundDown); err == nil || !strings.Contains(err.Error(), wantPart) {
			t.Errorf("ParseCapacity(%q) = %d, %v, want an error with %q", text, got, err, wantPart)
		}
	}
}

func TestBytesRoundsUpAsKubernetesDoes(t *testing.T) {
	for text, want := range map[string]int64{"1m": 1, "1500m": 2, "2500m": 3, "2": 2, "1.1Gi": 1181116007, "0.3Gi": 322122548, "1Gi": 1 << 30, "-1": -1} {
		if got := volume.Bytes(resource.MustParse(text)); got != want {
			t.Errorf("Bytes(%s) = %d, want %d", text, got, want)
		}
	}
}

func TestBytesBeyondAllNumbersAreTheMost(t *testing.T) {
	for text, want := range map[string]int64{
		"9223372036854775807": math.MaxInt64, "9223372036854775808": math.MaxInt64, "1e19": math.MaxInt64, "20E": math.MaxInt64,
		"1e50": math.MaxInt64, "1e2000000000": math.MaxInt64, "-20E": math.MinInt64,
	} {
		if got := volume.Bytes(resource.MustParse(text)); got != want {
			t.Errorf("Bytes(%s) = %d, want %d", text, got, want)
		}
	}
}
