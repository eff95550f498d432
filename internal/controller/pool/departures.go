package pool

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// departure is a volume, or the claim for one, on its way out.
type departure struct {
	name string
	// since is zero where it has hardly begun.
	since time.Time
}

// stuck says that the others no longer wait for this one.
func (d departure) stuck(now time.Time) bool {
	return !d.since.IsZero() && now.Sub(d.since) >= stuckAfter
}

// departures are all that leave. What was given up and then protected does not.
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

// leavingSince: deletion has its own time; what was given up leaves from when the
// binder has seen that.
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

// staysGivenUp says of a leaving volume that its label holds it.
func staysGivenUp(vol *corev1.PersistentVolume) bool {
	return vol.DeletionTimestamp == nil && volume.DeletionProtected(vol)
}

// firstStuck is when the next of those that leave will have been at it for too long.
func firstStuck(v *View, now time.Time) time.Time {
	var first time.Time
	for _, d := range departures(v) {
		if at := d.since.Add(stuckAfter); !d.since.IsZero() && !d.stuck(now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// leavingText tells of those that leave, and names the one that has been at it longest.
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

// protectedText tells of volumes that would go, were they not protected.
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
