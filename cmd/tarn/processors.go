package main

import (
	"os"
	"runtime"
)

// spareProcessors has the controller run on half of the processors it may use, at least one.
// What it does is short and between long waits for the API server, and each time Go wakes
// another processor that looks for more work and mostly finds none. Where there are few, those
// are the API server's. Whoever sets GOMAXPROCS has it so. Figures: docs/design/0015.
func spareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(half(runtime.GOMAXPROCS(0)))
	}
}

func half(processors int) int { return max(1, processors/2) }
