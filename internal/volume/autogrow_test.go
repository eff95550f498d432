package volume

import (
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

const gibibyte = 1 << 30

func TestAnAutoGrowSettingIsReadOrRejectedWithARemedy(t *testing.T) {
	for text, want := range map[string]AutoGrow{
		"at=80% by=20% max=100Gi":    {At: 80, ByPercent: 20, Max: 100 * gibibyte},
		"max=100Gi":                  {At: 80, ByPercent: 20, Max: 100 * gibibyte},
		"  max=1Ti by=10Gi  at=99% ": {At: 99, ByBytes: 10 * gibibyte, Max: 1024 * gibibyte},
		"by=1000% max=1":             {At: 80, ByPercent: 1000, Max: 1},
	} {
		if got, err := ParseAutoGrow(text); err != nil || got == nil || *got != want {
			t.Errorf("%q is read as %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "  ", "off"} {
		if got, err := ParseAutoGrow(text); got != nil || err != nil {
			t.Errorf("%q is read as %+v, %v; want nothing", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"on":                         `"on" is none of at, by and max; write for example`,
		"at=80%":                     `"at=80%" has no max; add the largest size`,
		"at=100% max=1Gi":            `at="100%" is not a percentage from 1% to 99%; write for example at=80%`,
		"at=0% max=1Gi":              `at="0%" is not a percentage`,
		"at=-5% max=1Gi":             `at="-5%" is not a percentage`,
		"at=80 max=1Gi":              `at="80" is not a percentage`,
		"by=1001% max=1Gi":           `by="1001%" is neither a percentage from 1% to 1000% nor a size`,
		"by=0 max=1Gi":               `by="0" is neither`,
		"by=10Gx max=1Gi":            `by="10Gx" is neither`,
		"max=lots":                   `max="lots" is not a size; write for example max=100Gi`,
		"max=1e99999":                `max="1e99999" is not a size`,
		"max=1Gi max=2Gi":            `max is set twice in "max=1Gi max=2Gi"; remove one`,
		"at=80%,by=20%,max=10Gi":     `at="80%,by=20%,max=10Gi" is not`,
		strings.Repeat("x", 2000):    `"xxxxxxxxxxxxxxxxxxxx" is none of`,
		"off max=1Gi":                `"off" is none of`,
		"at=99999999999999% max=1Gi": `at="99999999999999%" is not`,
	} {
		if got, err := ParseAutoGrow(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %+v, %v; want an error with %s", text, got, err, want)
		}
	}
}

func TestTheSettingOfAClaimOverridesThatOfItsClass(t *testing.T) {
	for _, c := range []struct {
		claim, class string
		wantMax      int64 // 0 for none
		wantError    string
	}{
		{"", "max=1Gi", gibibyte, ""},
		{"max=2Gi", "max=1Gi", 2 * gibibyte, ""},
		{"max=2Gi", "nonsense", 2 * gibibyte, ""},
		{"off", "max=1Gi", 0, ""},
		{"", "off", 0, ""},
		{"", "", 0, ""},
		{"max=x", "max=1Gi", 0, `annotation tarn.dev/auto-grow: max="x" is not`},
		{"", "max=x", 0, `annotation tarn.dev/auto-grow of StorageClass fast: max="x" is not`},
	} {
		claim, class := &corev1.PersistentVolumeClaim{}, &storagev1.StorageClass{}
		class.Name = "fast"
		claim.Annotations = map[string]string{tarnv1.AnnotationAutoGrow: c.claim}
		class.Annotations = map[string]string{tarnv1.AnnotationAutoGrow: c.class}
		grow, err := AutoGrowOf(claim, class)
		switch {
		case c.wantError != "":
			if err == nil || !strings.Contains(err.Error(), c.wantError) {
				t.Errorf("%q over %q: %v, want %s", c.claim, c.class, err, c.wantError)
			}
		case err != nil || (grow != nil) != (c.wantMax > 0) || grow != nil && grow.Max != c.wantMax:
			t.Errorf("%q over %q: %+v, %v; want max %d", c.claim, c.class, grow, err, c.wantMax)
		}
	}
	if grow, err := AutoGrowOf(&corev1.PersistentVolumeClaim{}, nil); grow != nil || err != nil {
		t.Errorf("a claim without class: %+v, %v", grow, err)
	}
}

func TestAStepIsRoundedUpAndEndsAtMax(t *testing.T) {
	const mi = mebibyte
	for _, c := range []struct {
		grow       AutoGrow
		size, want int64
	}{
		{AutoGrow{ByPercent: 20, Max: gibibyte}, 300 * mi, 360 * mi},
		{AutoGrow{ByPercent: 20, Max: gibibyte}, 301 * mi, 362 * mi}, // 361.2
		{AutoGrow{ByPercent: 1, Max: gibibyte}, 1, mi},
		{AutoGrow{ByPercent: 20, Max: 350 * mi}, 300 * mi, 350 * mi},
		{AutoGrow{ByPercent: 20, Max: 361*mi + 5}, 301 * mi, 361*mi + 5},
		{AutoGrow{ByPercent: 20, Max: 300 * mi}, 300 * mi, 300 * mi},
		{AutoGrow{ByPercent: 20, Max: 200 * mi}, 300 * mi, 300 * mi},
		{AutoGrow{ByBytes: 1, Max: gibibyte}, 300 * mi, 301 * mi},
		{AutoGrow{ByBytes: 10 * gibibyte, Max: 100 * gibibyte}, gibibyte, 11 * gibibyte},
		{AutoGrow{ByPercent: 1000, Max: math.MaxInt64}, math.MaxInt64 - 5, math.MaxInt64},
		{AutoGrow{ByPercent: 1000, Max: math.MaxInt64}, math.MaxInt64 / 8, math.MaxInt64},
		{AutoGrow{ByBytes: math.MaxInt64, Max: math.MaxInt64}, math.MaxInt64 - 1, math.MaxInt64},
		{AutoGrow{ByBytes: 1, Max: math.MaxInt64}, math.MaxInt64 - 3, math.MaxInt64},
	} {
		if got := c.grow.Next(c.size); got != c.want {
			t.Errorf("%+v from %d: %d, want %d", c.grow, c.size, got, c.want)
		}
	}
}

func TestFullIsWhatDfShows(t *testing.T) {
	grow := AutoGrow{At: 80}
	for _, c := range []struct {
		used, available, wantPercent int64
		want                         bool
	}{
		{80, 20, 80, true}, {79, 21, 79, false}, {0, 0, 0, false}, {5, 0, 100, true}, {5, -1, 100, true}, {0, 9, 0, false},
		{math.MaxInt64, math.MaxInt64, 50, false}, {7999, 2001, 79, false},
	} {
		if full, percent := grow.Full(c.used, c.available); full != c.want || percent != c.wantPercent {
			t.Errorf("%d used, %d available: %t, %d%%; want %t, %d%%", c.used, c.available, full, percent, c.want, c.wantPercent)
		}
	}
}
