package main

import (
	"crypto/sha256"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The calibration load is run again and again beside a suite, so that it is slowed by what slows the
// suite: another machine, and other work on this one.
const (
	// everyLoad is the pause between two runs of the load.
	everyLoad = 5 * time.Second
	// loadRounds makes one run take some 40 ms of processor time.
	loadRounds = 200
)

// startLoad runs the load beside the suite. The returned function ends it, and gives the processor
// seconds that one run took on average.
func startLoad() (end func() float64) {
	stop, mean := make(chan struct{}), make(chan float64)
	go func() {
		runtime.LockOSThread() // its own processor time is measured
		total, runs := 0., 0.
		for {
			before := threadSeconds()
			for range loadRounds {
				work()
			}
			total, runs = total+threadSeconds()-before, runs+1
			select {
			case <-time.After(everyLoad):
			case <-stop:
				mean <- total / runs
				return
			}
		}
	}()
	return func() float64 { close(stop); return <-mean }
}

// work does a bit of what suites do: it allocates, sorts, looks up and hashes.
func work() {
	words := make([]string, 500)
	at := make(map[string]int, len(words))
	for i := range words {
		words[i] = strconv.Itoa(i * 7919 % 10007)
		at[words[i]] = i
	}
	slices.Sort(words)
	sum := sha256.New()
	for _, word := range words {
		sum.Write([]byte(words[at[word]]))
		sum.Write(make([]byte, 256))
	}
	_ = sum.Sum(nil)
}

func threadSeconds() float64 {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at) // this clock is always there
	return float64(at.Nano()) / 1e9
}
