package pool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A pool serves bursts of claims, and creating new spares takes API server capacity from them.
// So while a burst lasts and spares are left, the pool orders none. A burst is burstSize
// volumes drawn within burstTime. burstSize is more than a pool could order in that time, with
// orderedAtOnce each gatherTime. A pool that is refilled as fast as it is drawn from therefore
// does not wait.
const (
	burstSize = 32
	burstTime = 2 * time.Second
)

// burstEnds is when new spares may be ordered again; zero if they may be ordered now. It uses
// the times at which volumes became Bound, which the API server writes in whole seconds.
func burstEnds(v *View, n counts, now time.Time) time.Time {
	if n.spares == 0 || n.spares+n.creating >= v.Set.Spec.MinimumReplicas {
		return time.Time{}
	}
	var last time.Time
	drawn := 0
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		at := vol.Status.LastPhaseTransitionTime
		if v.stateOf(vol) != used || vol.Status.Phase != corev1.VolumeBound || at == nil || now.Sub(at.Time).Abs() >= burstTime {
			continue
		}
		if drawn++; at.After(last) {
			last = at.Time
		}
	}
	if drawn < v.Burst {
		return time.Time{}
	}
	return last.Add(burstTime)
}
