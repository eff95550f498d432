package main

import (
	"math"
	"runtime"
	"testing"
	"time"
)

func TestASmallHeapGrowsByARoomAndALargeOneByAShare(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, mostGarbage},
		{1 << 20, mostGarbage},
		{roomToGrow, 100},
		{2 * roomToGrow, 50},
		{4 * roomToGrow, leastGarbage},
		{100 * roomToGrow, leastGarbage},
	} {
		if got := garbageFor(c.live); got != c.want {
			t.Errorf("%d bytes live: may grow by %d percent, want %d", c.live, got, c.want)
		}
	}
}

func TestTheSoftLimitHoldsWhereTheHeapHasRoomBelowIt(t *testing.T) {
	for _, c := range []struct{ live, want int64 }{
		{0, softLimit}, {90 << 20, softLimit}, {113 << 20, softLimit}, {114 << 20, math.MaxInt64}, {1 << 40, math.MaxInt64},
	} {
		if got := limitFor(uint64(c.live)); got != c.want {
			t.Errorf("%d bytes live: the limit is %d, want %d", c.live, got, c.want)
		}
	}
}

func TestEveryCollectionIsFollowed(t *testing.T) {
	seen := make(chan uint64, 100)
	followHeap(func(live uint64) {
		select {
		case seen <- live:
		default: // the process continues to collect garbage after the test
		}
	})
	for i := range 3 {
		select {
		case <-seen:
		case <-time.After(time.Minute):
			t.Fatalf("collection %d was not noticed", i)
		}
		runtime.GC()
	}
}

func TestTheControllerTakesHalfOfTheProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	t.Setenv("GOMAXPROCS", "")
	for had, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 64: 32} {
		runtime.GOMAXPROCS(had)
		spareProcessors()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("of %d processors the controller takes %d, want %d", had, got, want)
		}
	}
	t.Setenv("GOMAXPROCS", "4")
	runtime.GOMAXPROCS(4)
	spareProcessors()
	if got := runtime.GOMAXPROCS(0); got != 4 {
		t.Errorf("with GOMAXPROCS=4 the controller takes %d", got)
	}
}
