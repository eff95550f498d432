package main

import (
	"os"
	"runtime/debug"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"tarn.dev/tarn/internal/kube"
)

// controllerGarbage is how much the controller's heap may grow, in percent, before its
// garbage is collected. Most of it is caches that stay: with Go's 100 percent as much
// again would be held for nothing. Measured in bench/memory.
const controllerGarbage = 25

// spareMemory makes the controller hold little more than what its caches need, and
// those share what they can. Whoever sets GOGC has it so.
func spareMemory(o *cache.Options) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(controllerGarbage)
	}
	sharing := &kube.Sharing{}
	for kind, transform := range sharing.Transforms() {
		o.ByObject[kind] = cache.ByObject{Transform: transform}
	}
}
