package steppod

import (
	"strings"
	"testing"

	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// The template engine contains no code of Kubernetes, so it parses sizes by itself.
func TestTobytesReadsSizesAsTheFieldCapacityIsRead(t *testing.T) {
	numbers := []string{"", "0", "00", "1", "007", "1.5", ".5", "5.", ".", "0.3", "0.0000000001", "1.0000000001", "-1", "+2", "+", "--1", "1.2.3", "9223372036854775807", "9223372036854775808", "x"}
	suffixes := []string{"", "n", "u", "m", "k", "K", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "ki", "e", "e3", "E3", "E+3", "e-3", "e40", "e41", "e-41", "e99999999999999999999", "e3.5", "i", "GB", "µ", " ", "\n"}
	for _, number := range numbers {
		for _, suffix := range suffixes {
			if len(number) > 18 && strings.HasSuffix(suffix, "i") {
				continue // too large; apimachinery silently takes them for the largest size
			}
			text := number + suffix
			want, wantErr := volume.ParseCapacity(text, volume.RoundUp)
			got, err := jinja.Evaluate(t.Context(), "{% set yaml = true %}{{ size | tobytes }}", map[string]any{"size": text}, jinja.Limits{})
			if (err == nil) != (wantErr == nil) || err == nil && got != want {
				t.Errorf("%q: tobytes gives %v, %v; capacity is %v, %v", text, got, err, want, wantErr)
			}
		}
	}
}
