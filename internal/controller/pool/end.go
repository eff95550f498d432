package pool

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/volume"
)

// planEnd ends a set. It takes back what was ordered, and gives up or leaves the spares that
// the set has made. It does not touch bound volumes and volumes made by hand.
func planEnd(v *View, p *Plan, now time.Time) {
	orphan := v.Set.Annotations[tarnv1.AnnotationOrphan] == "true"
	for i := range v.Claims {
		endClaim(v, p, &v.Claims[i], orphan)
	}
	for i := range v.Pods {
		if v.Pods[i].DeletionTimestamp == nil {
			p.add(action.Delete{Object: &v.Pods[i]})
		}
	}
	pending := len(v.Claims)+len(v.Pods) > 0
	for i := range v.Volumes {
		pending = endVolume(v, p, &v.Volumes[i], orphan, now) || pending
	}
	if pending {
		return
	}
	var last action.Together
	if stay := v.names(func(vol *corev1.PersistentVolume, state state) bool {
		return madeBy(v.Set, vol) && volume.DeletionProtected(vol) && (state == spare || state == lost || state == leaving)
	}); len(stay) > 0 {
		last = append(last, v.kept("%d volumes are kept, because their label %s protects them from deletion: %s",
			len(stay), tarnv1.LabelDeletionProtection, strings.Join(stay, ", ")))
	}
	if later := v.names(func(vol *corev1.PersistentVolume, state state) bool {
		return madeBy(v.Set, vol) && state == recycling
	}); len(later) > 0 {
		last = append(last, v.kept("%d volumes are being recycled; they are kept and become Available to any claim of their class: %s",
			len(later), strings.Join(later, ", ")))
	}
	if v.Filler != nil && madeFor(v.Set, v.Filler) {
		last = append(last, action.Delete{Object: v.Filler})
	}
	p.addGrave(append(last, action.RemoveFinalizer{Object: v.Set, Name: tarnv1.FinalizerPool}))
	p.Ended = true
}

// endClaim deletes a filler claim. Its volume is deleted with it, unless it is marked and
// spares stay.
func endClaim(v *View, p *Plan, claim *corev1.PersistentVolumeClaim, orphan bool) {
	vol := v.volume(claim.Spec.VolumeName)
	switch {
	case claim.DeletionTimestamp != nil:
	case vol == nil, vol.Spec.ClaimRef == nil, vol.Spec.ClaimRef.UID != claim.UID:
		p.dismiss(claim)
	case !isFilling(vol):
		discard(v, p, vol, claim)
	case orphan, volume.DeletionProtected(vol):
		passClaim(v, p, claim)
	default:
		takeBack(p, vol, claim)
	}
}

// endVolume does what remains to do about a volume when its set is deleted. It reports whether
// more is to follow.
func endVolume(v *View, p *Plan, vol *corev1.PersistentVolume, orphan bool, now time.Time) (waits bool) {
	state := v.stateOf(vol)
	filling := state == joining && isFilling(vol)
	switch {
	case state == leaving:
		return finish(v, p, vol)
	case !madeBy(v.Set, vol):
		return false
	case filling && v.holder(vol) != nil: // endClaim handles it
	case filling && (orphan || volume.DeletionProtected(vol)):
		p.addGrave(action.Patch{From: vol, To: free(vol, now)})
	case filling, !marked(vol) && !orphan && (mayGiveUp(v, vol) || state == lost && !volume.DeletionProtected(vol)):
		p.addGrave(action.Patch{From: vol, To: giveUp(v, vol)})
	case marked(vol) && maySettle(v, vol):
		p.add(action.Patch{From: vol, To: settle(vol)})
	default:
		return marked(vol) // the binder has yet to record its claim
	}
	return true
}
