package pool

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// fillingAtOnce is how many volumes of a set are being made at once.
const fillingAtOnce = 16

// orderedAtOnce is how many of them one reconcile orders. Sixteen begun in the same moment
// would take API server capacity from the claims.
const orderedAtOnce = 4

// stuckAfter is how long the other departures wait for one that is being deleted. A provisioner
// that always fails must not block the pool for ever.
const stuckAfter = 10 * time.Minute

// size makes the pool as large as it should be: it orders volumes or gives them up.
func size(v *View, now time.Time) []Action {
	var actions []Action
	for i := range v.Volumes {
		actions = append(actions, finish(v, &v.Volumes[i])...)
	}
	n := count(v)
	if over := n.total - v.Set.Spec.MaximumReplicas - n.leaving; over > 0 {
		return append(actions, shrink(v, now, int(over))...)
	}
	if troubleOf(v) != nil || !burstEnds(v, n, now).IsZero() {
		return actions
	}
	wanted := v.Set.Spec.MinimumReplicas
	if n.replaceable > 0 {
		if n.spares > wanted {
			actions = append(actions, giveUpOne(v, now, func(vol *corev1.PersistentVolume) bool { return outdated(v.Set, vol) })...)
		} else {
			wanted++ // the new one is created before an old one is deleted
		}
	}
	orders := order(v, min(wanted-n.spares-n.creating, room(v, n), fillingAtOnce-n.creating, orderedAtOnce))
	if class := renewClass(v); len(class) > 0 {
		return append(actions, append(class, orders...)) // orders need the new class
	}
	return append(actions, orders...)
}

// renewClass corrects the filler class.
func renewClass(v *View) Together {
	class := fillerClass(v.Set, v.Class)
	switch {
	case v.Filler == nil:
		return Together{MakeClass{class}}
	case !sameClass(v.Filler, class):
		return Together{DropClass{v.Filler}, MakeClass{class}}
	}
	return nil
}

// order creates filler claims in the lowest free slots. A slot is part of the name, so a
// repeated order of the same volume fails harmlessly.
func order(v *View, n int32) []Action {
	taken := map[string]bool{}
	for i := range v.Claims {
		taken[v.Claims[i].Name] = true
	}
	spread := newSpread(v)
	var actions []Action
	for slot := 0; n > 0; slot++ {
		if taken[fmt.Sprintf("%s%d", fillerPrefix(v.Set.UID), slot)] {
			continue
		}
		actions = append(actions, Order{fillerClaim(v, slot, spread.next())})
		n--
	}
	return actions
}

// shrink takes back orders that have no volume yet, and gives up the largest spare. It gives up
// one at a time, because each takes a new decision.
func shrink(v *View, now time.Time, over int) []Action {
	var actions []Action
	for i := len(v.Claims) - 1; i >= 0 && over > 0; i-- {
		if c := &v.Claims[i]; c.DeletionTimestamp == nil && c.Status.Phase != corev1.ClaimBound {
			actions = append(actions, Dismiss{c})
			over--
		}
	}
	if over > 0 {
		actions = append(actions, giveUpOne(v, now, func(*corev1.PersistentVolume) bool { return true })...)
	}
	return actions
}

// giveUpOne gives up the largest of the permitted spares, unless a volume is already leaving.
func giveUpOne(v *View, now time.Time, may func(*corev1.PersistentVolume) bool) []Action {
	for _, d := range departures(v) {
		if !d.stuck(now) {
			return nil
		}
	}
	var best *corev1.PersistentVolume
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		if mayGiveUp(v, vol) && may(vol) && (best == nil || before(v, vol, best)) {
			best = vol
		}
	}
	if best == nil {
		return nil
	}
	return []Action{Together{parting(v, best), Post{corev1.EventTypeNormal, eventGivenUp, fmt.Sprintf("spare volume %s is removed from the pool", best.Name)}}}
}

// before orders spares by which one is given up first.
func before(v *View, a, b *corev1.PersistentVolume) bool {
	sizeA, sizeB := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	old := func(vol *corev1.PersistentVolume) int {
		if outdated(v.Set, vol) {
			return 0
		}
		return 1
	}
	return cmp.Or(sizeB.Cmp(sizeA), cmp.Compare(old(a), old(b)), cmp.Compare(a.Name, b.Name)) < 0
}

// mayGiveUp reports whether a volume is a settled, unprotected spare of no other set. A volume
// whose set no longer exists belongs to no set.
func mayGiveUp(v *View, vol *corev1.PersistentVolume) bool {
	ours, whose := madeBy(v.Set, vol), vol.Annotations[tarnv1.AnnotationPoolUID]
	return v.stateOf(vol) == spare && !volume.DeletionProtected(vol) && !(ours && marked(vol)) && (ours || !v.Sets[whose])
}

func outdated(set *tarnv1.PersistentVolumeSet, vol *corev1.PersistentVolume) bool {
	return madeBy(set, vol) && vol.Annotations[tarnv1.AnnotationPoolTemplate] != hashOf(&set.Spec.Template)
}

// finish deletes the object of a volume that this set has given up and that no provisioner
// deletes. It first reports what stays. A volume that was protected afterwards stays as it is.
func finish(v *View, vol *corev1.PersistentVolume) []Action {
	ref := vol.Spec.ClaimRef
	if vol.DeletionTimestamp != nil || ref == nil || ref.UID != v.Set.UID || !volume.GivenUp(vol, v.Namespace) || provisionerDeletes(vol) || volume.DeletionProtected(vol) {
		return nil
	}
	return []Action{Together{whatStays(vol), Remove{vol}}}
}
