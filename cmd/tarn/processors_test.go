package main

import (
	"runtime"
	"testing"
)

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
