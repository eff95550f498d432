package main

import (
	"os"
	"runtime"
)

// spareProcessors makes the controller use half of the available processors, at least one. Its work
// is short, with long waits for the API server between. Each time, Go starts another processor that
// looks for more work and mostly finds none. On a small machine, the API server needs those
// processors. GOMAXPROCS is respected when set. Figures: docs/design/0015.
func spareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(half(runtime.GOMAXPROCS(0)))
	}
}

func half(processors int) int { return max(1, processors/2) }
