package pool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A pool is there for those who draw many at once, and what makes a new spare takes the API
// server from them: so while many were drawn within burstTime, and spares are left, none is
// ordered. burstSize is more than a pool could order in that time, orderedAtOnce each
// gatherTime: one that fills as fast as it is drawn from does not wait.
const (
	burstSize = 32
	burstTime = 2 * time.Second
)

// burstEnds is when new spares may be ordered again, zero where they may now. It goes by
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
