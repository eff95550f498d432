package volume

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Reserve is how much of a file system must stay free.
type Reserve struct {
	// Bytes is an absolute size.
	Bytes uint64
	// Percent is a part of the size of the file system, from 0 to 99.
	Percent uint64
}

// ParseReserve reads a quantity such as 10Gi, or a whole percentage such as 2%. An empty text
// reserves nothing.
func ParseReserve(text string) (Reserve, error) {
	if text == "" {
		return Reserve{}, nil
	}
	if digits, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseUint(digits, 10, 8)
		if err != nil || percent > 99 {
			return Reserve{}, fmt.Errorf("reserve %.*q is not a whole percentage from 0%% to 99%%", longestSize, text)
		}
		return Reserve{Percent: percent}, nil
	}
	bytes, err := ParseCapacity(text, RoundUp)
	if err != nil {
		return Reserve{}, fmt.Errorf("reserve %.*q is neither a quantity like 10Gi nor a percentage like 2%%", longestSize, text)
	}
	return Reserve{Bytes: uint64(bytes)}, nil //nolint:gosec // it is positive
}

// Left is how many bytes a volume may take of a file system: what is free, less the reserve.
func (r Reserve) Left(size, free uint64) int64 {
	high, low := bits.Mul64(size, r.Percent)
	kept, _ := bits.Div64(high, low, 100) // Percent is below 100, so high is, too
	kept += r.Bytes
	if kept >= free {
		return 0
	}
	return int64(min(free-kept, math.MaxInt64)) //nolint:gosec // it fits by the line before
}

// Moved reports whether a measured capacity differs enough from the written one to be written
// again. Less always does: a claim must not be sent to a node that it no longer fits on. More does
// if it is more by over a hundredth.
func Moved(written, measured int64) bool {
	return measured < written || measured-written > written/100
}
