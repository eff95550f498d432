package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"tarn.dev/tarn/internal/kube"
)

// How much the controller's heap may grow before a garbage collection, in percent of the live heap.
// Most of the live heap is caches, which stay. Go's default of 100 percent would hold as much again
// for nothing, so a large heap gets leastGarbage. With so little, a small heap would be collected
// after every few objects. That would take processor time from an API server on the same machine,
// so a heap may always grow by roomToGrow. Measured in bench/memory and docs/design/0015.
const (
	leastGarbage = 25
	mostGarbage  = 400
	roomToGrow   = 24 << 20
)

// softLimit is the most memory that the controller uses, as long as the live heap leaves room for
// collecting. With 10,000 volumes, leastGarbage alone would exceed it at times. Memory outside the
// heap is about besideHeap. Both are in bytes.
const (
	softLimit  = 140 << 20
	besideHeap = 12 << 20
)

// spareMemory makes the controller use little more memory than its caches need, and makes the
// caches share what they can. GOGC and GOMEMLIMIT are respected when set.
func spareMemory(o *cache.Options) {
	percent, limit := os.Getenv("GOGC") == "", os.Getenv("GOMEMLIMIT") == ""
	followHeap(func(live uint64) {
		if percent {
			debug.SetGCPercent(garbageFor(live))
		}
		if limit {
			debug.SetMemoryLimit(limitFor(live))
		}
	})
	sharing := &kube.Sharing{}
	for kind, transform := range sharing.Transforms() {
		o.ByObject[kind] = cache.ByObject{Transform: transform}
	}
}

// garbageFor returns how much a heap of live bytes may grow, in percent.
func garbageFor(live uint64) int {
	return int(min(max(roomToGrow*100/max(live, 1), leastGarbage), mostGarbage))
}

// limitFor returns the soft limit for a heap of live bytes. If that would leave less than an eighth
// to grow, there is no limit, because collecting would then take all processor time.
func limitFor(live uint64) int64 {
	if live+live/8+besideHeap > softLimit {
		return math.MaxInt64
	}
	return softLimit
}

// followHeap calls set with the size of the live heap, now and after each collection. Go reports a
// collection only by collecting an object, so each call creates a new mark.
func followHeap(set func(live uint64)) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	set(live[0].Value.Uint64())
	mark := new(*byte) // a pointer, because Go may put objects without pointers into one block and keep it
	runtime.AddCleanup(mark, followHeap, set)
}

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
