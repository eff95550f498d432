package volume_test

import (
	"math"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"tarn.dev/tarn/internal/volume"
)

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
