package volume

import (
	"math"
	"strings"
	"testing"
)

func TestAReserveIsAQuantityOrAPercentage(t *testing.T) {
	const size, free = 1000, 500
	for text, want := range map[string]int64{
		"": 500, "0%": 500, "2%": 480, "50%": 0, "99%": 0, "100": 400, "1k": 0, "499500m": 0, "499": 1,
	} {
		reserve, err := ParseReserve(text)
		if got := reserve.Left(size, free); err != nil || got != want {
			t.Errorf("with reserve %q there are %d bytes of %d (%v), want %d", text, got, free, err, want)
		}
	}
	for _, text := range []string{"100%", "-1%", "2.5%", "%", "2 %", "much", "-1Gi", "0", "1e999999999", "2%%"} {
		if _, err := ParseReserve(text); err == nil || !strings.Contains(err.Error(), "reserve \""+text+"\" is n") {
			t.Errorf("reserve %q gives %v, want an error that names it", text, err)
		}
	}
	if got := (Reserve{Percent: 99}).Left(math.MaxUint64, math.MaxUint64); got <= math.MaxInt64/100 {
		t.Errorf("one percent of the largest file system is %d", got)
	}
	if got := (Reserve{}).Left(math.MaxUint64, math.MaxUint64); got != math.MaxInt64 {
		t.Errorf("the largest file system has %d bytes", got)
	}
}

func TestAMeasuredCapacityIsWrittenWhenItHasMoved(t *testing.T) {
	for _, c := range []struct {
		written, measured int64
		want              bool
	}{
		{0, 0, false}, {0, 1, true}, {1, 0, true}, {1000, 999, true}, {1000, 1000, false}, {1000, 1010, false}, {1000, 1011, true},
		{math.MaxInt64, 1, true}, {1, math.MaxInt64, true}, {50, 51, true},
	} {
		if got := Moved(c.written, c.measured); got != c.want {
			t.Errorf("Moved(%d, %d) = %v", c.written, c.measured, got)
		}
	}
}
