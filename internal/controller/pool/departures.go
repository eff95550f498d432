package pool

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// departure is a volume that is leaving the pool, or a filler claim that is being deleted.
type departure struct {
	name string
	// since is zero if it has barely begun.
	since time.Time
}

// stuck reports whether the other departures no longer wait for this one.
func (d departure) stuck(now time.Time) bool {
	return !d.since.IsZero() && now.Sub(d.since) >= stuckAfter
}

// departures are all volumes and claims that leave. A volume given up and protected afterwards
// does not leave.
func departures(v *View) []departure {
	var all []departure
	seen := map[string]bool{}
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		seen[vol.Name] = true
		if v.stateOf(vol) == leaving && !staysGivenUp(vol) {
			all = append(all, departure{"volume " + vol.Name, leavingSince(vol)})
		}
	}
	for i := range v.Claims {
		if c := &v.Claims[i]; c.DeletionTimestamp != nil && !seen[c.Spec.VolumeName] {
			all = append(all, departure{"filler claim " + c.Name, c.DeletionTimestamp.Time})
		}
	}
	return all
}

// leavingSince is the deletion time of a volume that is being deleted. A volume given up leaves
// from when the binder has released it.
func leavingSince(vol *corev1.PersistentVolume) time.Time {
	at, phase := vol.Status.LastPhaseTransitionTime, vol.Status.Phase
	switch {
	case vol.DeletionTimestamp != nil:
		return vol.DeletionTimestamp.Time
	case at != nil && (phase == corev1.VolumeReleased || phase == corev1.VolumeFailed):
		return at.Time
	}
	return time.Time{}
}

// staysGivenUp reports whether the protection label keeps a volume that was given up.
func staysGivenUp(vol *corev1.PersistentVolume) bool {
	return vol.DeletionTimestamp == nil && volume.DeletionProtected(vol)
}

// firstStuck is when the next of the departures counts as stuck.
func firstStuck(v *View, now time.Time) time.Time {
	var first time.Time
	for _, d := range departures(v) {
		if at := d.since.Add(stuckAfter); !d.since.IsZero() && !d.stuck(now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// leavingText describes the departures, and names the oldest.
func leavingText(v *View) string {
	all := departures(v)
	if len(all) == 0 {
		return ""
	}
	longest := all[0]
	for _, d := range all[1:] {
		if !d.since.IsZero() && (longest.since.IsZero() || d.since.Before(longest.since)) {
			longest = d
		}
	}
	text := fmt.Sprintf("; %d are being deleted: %s", len(all), longest.name)
	if !longest.since.IsZero() {
		text += " since " + longest.since.UTC().Format(time.RFC3339)
	}
	return text
}

// protectedText describes the volumes that would be given up if they were not protected.
func protectedText(v *View, n counts) string {
	over := n.total-n.leaving > v.Set.Spec.MaximumReplicas
	var names []string
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		state := v.stateOf(vol)
		if volume.DeletionProtected(vol) && (state == leaving && staysGivenUp(vol) || state == spare && (over || outdated(v.Set, vol))) {
			names = append(names, vol.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; %d should be deleted but are kept, because their label %s protects them from deletion: %s",
		len(names), tarnv1.LabelDeletionProtection, strings.Join(names, ", "))
}
