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

// How much the controller's heap may grow before its garbage is collected, in percent
// of what lives. Most of what lives is caches that stay: with Go's 100 percent as much
// again would be held for nothing, so a large heap has the least. A small one would with
// so little be collected after every few objects, on processors that the API server
// beside it could use, so it may always grow by roomToGrow. Measured in bench/memory and
// docs/design/0015.
const (
	leastGarbage = 25
	mostGarbage  = 400
	roomToGrow   = 24 << 20
)

// softLimit is what the controller holds at most of memory, as long as what lives in it
// leaves room: with 10,000 volumes a quarter of garbage would be more at times. Beside the
// heap it holds about besideHeap.
const (
	softLimit  = 140 << 20
	besideHeap = 12 << 20
)

// spareMemory makes the controller hold little more than what its caches need, and
// those share what they can. Whoever sets GOGC or GOMEMLIMIT has it so.
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

// garbageFor is how much a heap of live bytes may grow, in percent.
func garbageFor(live uint64) int {
	return int(min(max(roomToGrow*100/max(live, 1), leastGarbage), mostGarbage))
}

// limitFor is the soft limit for a heap of live bytes: none where less than an eighth of
// that were left to grow, as collecting would take the processors then.
func limitFor(live uint64) int64 {
	if live+live/8+besideHeap > softLimit {
		return math.MaxInt64
	}
	return softLimit
}

// followHeap calls set with the bytes that live, now and after each collection. Go tells
// of a collection only by what it collects: here a mark, made anew each time.
func followHeap(set func(live uint64)) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	set(live[0].Value.Uint64())
	mark := new(*byte) // a pointer: what has none may share its piece of memory and stay
	runtime.AddCleanup(mark, followHeap, set)
}
