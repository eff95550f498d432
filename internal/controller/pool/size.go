package pool

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
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
func size(v *View, p *Plan, now time.Time) {
	for i := range v.Volumes {
		finish(v, p, &v.Volumes[i])
		abandon(v, p, &v.Volumes[i])
	}
	n := count(v)
	if over := n.total - v.Set.Spec.MaximumReplicas - n.leaving; over > 0 {
		shrink(v, p, now, int(over))
		return
	}
	if troubleOf(v) != nil || !burstEnds(v, n, now).IsZero() {
		return
	}
	wanted := v.Set.Spec.MinimumReplicas
	if n.replaceable > 0 {
		if n.spares > wanted {
			giveUpOne(v, p, now, func(vol *corev1.PersistentVolume) bool { return outdated(v.Set, vol) })
		} else {
			wanted++ // the new one is created before an old one is deleted
		}
	}
	orders := order(v, min(wanted-n.spares-n.creating, room(v, n), fillingAtOnce-n.creating, orderedAtOnce))
	p.Grave = p.Grave || len(orders) > 0
	if class := renewClass(v); len(class) > 0 {
		orders = []action.Action{append(class, orders...)} // orders need the new class
	}
	p.add(orders...)
}

// renewClass corrects the filler class.
func renewClass(v *View) action.Together {
	class := fillerClass(v.Set, v.Class)
	switch {
	case v.Filler == nil:
		return action.Together{action.Create{Object: class}}
	case !sameClass(v.Filler, class):
		return action.Together{action.Delete{Object: v.Filler}, action.Create{Object: class}}
	}
	return nil
}

// order creates filler claims in the lowest free slots. A slot is part of the name, so a
// repeated order of the same volume fails harmlessly.
func order(v *View, n int32) []action.Action {
	taken := map[string]bool{}
	for i := range v.Claims {
		taken[v.Claims[i].Name] = true
	}
	spread := newSpread(v)
	var actions []action.Action
	for slot := 0; n > 0; slot++ {
		if taken[fillerName(v.Set, slot)] {
			continue
		}
		actions = append(actions, action.Create{Object: fillerClaim(v, slot, spread.next())})
		n--
	}
	return actions
}

// shrink takes back orders that have no volume yet, and gives up the largest spare. It gives up
// one at a time, because each takes a new decision.
func shrink(v *View, p *Plan, now time.Time, over int) {
	for i := len(v.Claims) - 1; i >= 0 && over > 0; i-- {
		if c := &v.Claims[i]; c.DeletionTimestamp == nil && c.Status.Phase != corev1.ClaimBound {
			p.dismiss(c)
			over--
		}
	}
	if over > 0 {
		giveUpOne(v, p, now, func(*corev1.PersistentVolume) bool { return true })
	}
}

// giveUpOne gives up the largest of the permitted spares, unless a volume is already leaving.
func giveUpOne(v *View, p *Plan, now time.Time, may func(*corev1.PersistentVolume) bool) {
	for _, d := range departures(v) {
		if !d.stuck(now) {
			return
		}
	}
	var best *corev1.PersistentVolume
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		if mayGiveUp(v, vol) && may(vol) && (best == nil || before(v, vol, best)) {
			best = vol
		}
	}
	if best != nil {
		p.addGrave(action.Together{action.Patch{From: best, To: giveUp(v, best)},
			v.event(corev1.EventTypeNormal, eventGivenUp, fmt.Sprintf("spare volume %s is removed from the pool", best.Name))})
	}
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

// abandon gives up a lost spare of this set. Its provisioner deletes it when its node is back, or
// when an administrator says that the node stays away. A volume that its provisioner would not
// delete stays: it may hold data, and the node may come back.
func abandon(v *View, p *Plan, vol *corev1.PersistentVolume) {
	if v.stateOf(vol) != lost || !madeBy(v.Set, vol) || marked(vol) || volume.DeletionProtected(vol) {
		return
	}
	if to := giveUp(v, vol); provisionerDeletes(to) {
		p.addGrave(action.Together{action.Patch{From: vol, To: to},
			v.event(corev1.EventTypeNormal, eventGivenUp, fmt.Sprintf("spare volume %s is removed from the pool: no node matches its node affinity any more", vol.Name))})
	}
}

func outdated(set *tarnv1.PersistentVolumeSet, vol *corev1.PersistentVolume) bool {
	return madeBy(set, vol) && vol.Annotations[tarnv1.AnnotationPoolTemplate] != hashOf(&set.Spec.Template)
}

// finish deletes the object of a volume that this set has given up and that no provisioner
// deletes, and reports whether it does. It first reports what stays. A volume that was protected
// afterwards stays as it is.
func finish(v *View, p *Plan, vol *corev1.PersistentVolume) bool {
	ref := vol.Spec.ClaimRef
	if vol.DeletionTimestamp != nil || ref == nil || ref.UID != v.Set.UID || !volume.GivenUp(vol, v.Namespace) || provisionerDeletes(vol) || volume.DeletionProtected(vol) {
		return false
	}
	p.addGrave(action.Together{whatStays(v, vol), action.Delete{Object: vol, Unchanged: true}})
	return true
}

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

// spread distributes the values of a template's topologyKey so that the spares, including those
// being made, are as even as possible.
type spread struct {
	domains []string
	volumes map[string]int
}

func newSpread(v *View) *spread {
	s := &spread{domains: v.Open, volumes: map[string]int{}}
	for i := range v.Volumes {
		if state := v.stateOf(&v.Volumes[i]); state == spare || state == joining {
			s.volumes[v.Volumes[i].Annotations[tarnv1.AnnotationPoolTopology]]++
		}
	}
	for i := range v.Claims {
		if vol := v.volume(v.Claims[i].Spec.VolumeName); vol == nil || !marked(vol) {
			s.volumes[v.Claims[i].Annotations[tarnv1.AnnotationPoolTopology]]++
		}
	}
	return s
}

// next returns the domain that has the fewest spares; empty if there is no domain.
func (s *spread) next() string {
	best := ""
	for _, domain := range s.domains {
		if best == "" || s.volumes[domain] < s.volumes[best] {
			best = domain
		}
	}
	s.volumes[best]++
	return best
}
