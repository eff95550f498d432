package volume

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// AutoGrow says when a claim grows by itself, and how far.
type AutoGrow struct {
	// At is how full the file system must be, in percent.
	At int64
	// ByPercent is the size of a step in percent of the current size; 0 if ByBytes says it.
	ByPercent int64
	// ByBytes is the size of a step in bytes.
	ByBytes int64
	// Max is the size, in bytes, beyond which the claim does not grow.
	Max int64
}

const (
	// autoGrowOff disables the setting of the class for a claim.
	autoGrowOff = "off"
	// exampleAutoGrow is what error messages propose.
	exampleAutoGrow = `"at=80% by=20% max=100Gi"`
	// mebibyte is what sizes are rounded up to: some drivers take whole mebibytes only.
	mebibyte = 1 << 20
)

// AutoGrowOf reads the setting of a claim: its own annotation, or else that of its class, which may
// be nil. The result is nil if the claim does not grow by itself. An error names annotation, value
// and remedy.
func AutoGrowOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*AutoGrow, error) {
	text, where := claim.Annotations[tarnv1.AnnotationAutoGrow], ""
	if text == "" && class != nil {
		text, where = class.Annotations[tarnv1.AnnotationAutoGrow], " of StorageClass "+class.Name
	}
	grow, err := ParseAutoGrow(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s%s: %w", tarnv1.AnnotationAutoGrow, where, err)
	}
	return grow, nil
}

// ParseAutoGrow reads a setting such as "at=80% by=20% max=100Gi". At is 80% and by 20% unless the
// text says otherwise. The result is nil for an empty text and for "off".
func ParseAutoGrow(text string) (*AutoGrow, error) {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) == 1 && words[0] == autoGrowOff {
		return nil, nil
	}
	grow := &AutoGrow{At: 80, ByPercent: 20}
	seen := map[string]bool{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		if seen[key] {
			return nil, fmt.Errorf("%s is set twice in %.100q; remove one of them", key, text)
		}
		seen[key] = true
		if err := grow.set(key, value); err != nil {
			return nil, err
		}
	}
	if !seen["max"] {
		return nil, fmt.Errorf("%.100q has no max; add the largest size that the claim may reach, as in %s", text, exampleAutoGrow)
	}
	return grow, nil
}

func (g *AutoGrow) set(key, value string) error {
	percent, isPercent := percentage(value)
	bytes, notSize := ParseCapacity(value, RoundUp)
	switch key {
	case "at":
		if g.At = percent; !isPercent || percent > 99 {
			return fmt.Errorf("at=%.20q is not a percentage from 1%% to 99%%; write for example at=80%%", value)
		}
	case "by":
		switch {
		case isPercent && percent <= 1000:
			g.ByPercent, g.ByBytes = percent, 0
		case notSize == nil:
			g.ByPercent, g.ByBytes = 0, bytes
		default:
			return fmt.Errorf("by=%.20q is neither a percentage from 1%% to 1000%% nor a size; write for example by=20%% or by=10Gi", value)
		}
	case "max":
		if g.Max = bytes; notSize != nil {
			return fmt.Errorf("max=%.20q is not a size; write for example max=100Gi", value)
		}
	default:
		return fmt.Errorf("%.20q is none of at, by and max; write for example %s, or %s on a claim", key, exampleAutoGrow, autoGrowOff)
	}
	return nil
}

// percentage reads a whole number of percent, 1% or more.
func percentage(text string) (int64, bool) {
	digits, is := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(digits, 10, 16)
	return int64(n), is && err == nil && n > 0
}

// Full says whether a file system with these bytes in use and available is full enough to grow, and
// how full it is in percent. That is the percentage that df shows, rounded down.
func (g *AutoGrow) Full(used, available int64) (full bool, percent int64) {
	if used <= 0 {
		return false, 0
	}
	available = max(available, 0)
	high, low := bits.Mul64(uint64(used), 100)
	quotient, _ := bits.Div64(high, low, uint64(used)+uint64(available))
	percent = int64(quotient)
	return percent >= g.At, percent
}

// Next is the size in bytes after a step from a size. It is rounded up to whole mebibytes, and at
// most Max. From Max on it is the size itself.
func (g *AutoGrow) Next(size int64) int64 {
	if size >= g.Max {
		return size
	}
	by := g.ByBytes
	if g.ByPercent > 0 {
		high, low := bits.Mul64(uint64(size), uint64(g.ByPercent))
		if high >= 50 { // more than any number of bytes
			return g.Max
		}
		quotient, _ := bits.Div64(high, low, 100)
		by = int64(max(quotient, 1))
	}
	if by >= g.Max-size {
		return g.Max
	}
	next := size + by
	if rest := next % mebibyte; rest > 0 {
		if mebibyte-rest >= g.Max-next {
			return g.Max
		}
		next += mebibyte - rest
	}
	return next
}
