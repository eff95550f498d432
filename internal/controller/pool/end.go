package pool

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// planEnd ends a set. It takes back what was ordered, and gives up or leaves the spares that
// the set has made. It does not touch bound volumes and volumes made by hand.
func planEnd(v *View, now time.Time) []Action {
	orphan := v.Set.Annotations[tarnv1.AnnotationOrphan] == "true"
	var actions []Action
	for i := range v.Claims {
		actions = append(actions, endClaim(v, &v.Claims[i], orphan)...)
	}
	for i := range v.Pods {
		if v.Pods[i].DeletionTimestamp == nil {
			actions = append(actions, StopPod{&v.Pods[i]})
		}
	}
	pending := len(v.Claims) + len(v.Pods)
	for i := range v.Volumes {
		steps, waits := endVolume(v, &v.Volumes[i], orphan, now)
		actions = append(actions, steps...)
		if waits {
			pending++
		}
	}
	if pending > 0 {
		return actions
	}
	var last Together
	if stay := protectedSpares(v); len(stay) > 0 {
		last = append(last, Post{corev1.EventTypeWarning, eventKept, fmt.Sprintf("%d volumes are kept, because their label %s protects them from deletion: %s",
			len(stay), tarnv1.LabelDeletionProtection, strings.Join(stay, ", "))})
	}
	if later := recycledLater(v); len(later) > 0 {
		last = append(last, Post{corev1.EventTypeWarning, eventKept, fmt.Sprintf("%d volumes are being recycled; they are kept and become Available to any claim of their class: %s",
			len(later), strings.Join(later, ", "))})
	}
	if v.Filler != nil && madeFor(v.Set, v.Filler) {
		last = append(last, DropClass{v.Filler})
	}
	return append(actions, append(last, LetGo{}))
}

// protectedSpares names the volumes that would have been deleted with the set.
func protectedSpares(v *View) []string {
	var names []string
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		if state := v.stateOf(vol); madeBy(v.Set, vol) && volume.DeletionProtected(vol) && (state == spare || state == leaving) {
			names = append(names, vol.Name)
		}
	}
	return names
}

// recycledLater names the volumes that will be recycled after the pool is gone.
func recycledLater(v *View) []string {
	var names []string
	for i := range v.Volumes {
		if vol := &v.Volumes[i]; madeBy(v.Set, vol) && v.stateOf(vol) == recycling {
			names = append(names, vol.Name)
		}
	}
	return names
}

// endClaim deletes a filler claim. Its volume is deleted with it, unless it is marked and
// spares stay.
func endClaim(v *View, claim *corev1.PersistentVolumeClaim, orphan bool) []Action {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	vol := v.volume(claim.Spec.VolumeName)
	switch {
	case vol == nil, vol.Spec.ClaimRef == nil, vol.Spec.ClaimRef.UID != claim.UID:
		return []Action{Dismiss{claim}}
	case !isFilling(vol):
		return discard(vol, claim)
	case orphan, volume.DeletionProtected(vol):
		return passClaim(v, claim)
	}
	return takeBack(vol, claim)
}

// endVolume does what remains to do about a volume when its set is deleted. waits means that
// more is to follow.
func endVolume(v *View, vol *corev1.PersistentVolume, orphan bool, now time.Time) (actions []Action, waits bool) {
	state, passes := v.stateOf(vol), marked(vol)
	if state == leaving {
		actions = finish(v, vol)
		return actions, len(actions) > 0
	}
	change := func(to *corev1.PersistentVolume, grave bool) ([]Action, bool) {
		return []Action{Change{From: vol, To: to, Grave: grave}}, true
	}
	switch {
	case !madeBy(v.Set, vol):
	case state == joining && isFilling(vol) && v.holder(vol.Annotations[tarnv1.AnnotationPoolFilling]) != nil:
		return nil, true // endClaim handles it
	case state == joining && isFilling(vol) && (orphan || volume.DeletionProtected(vol)):
		return change(free(vol, now), true)
	case state == joining && isFilling(vol):
		return []Action{parting(v, vol)}, true
	case passes && maySettle(v, vol):
		return change(settle(vol), false)
	case passes:
		return nil, true // the binder has yet to record its claim
	case !orphan && mayGiveUp(v, vol):
		return []Action{parting(v, vol)}, true
	}
	return nil, false
}
