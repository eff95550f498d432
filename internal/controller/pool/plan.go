package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// fillingAtOnce is how many volumes of a set are made at once.
const fillingAtOnce = 16

// Plan is what to do, in this order.
type Plan struct{ Actions []Action }

// Action is one write. It is one of the types below, each of which may be done twice
// without harm.
type Action interface{ action() }

type (
	// Hold puts the pool's finalizer on the set, LetGo takes it off.
	Hold  struct{}
	LetGo struct{}
	// MakeClass creates the filler class, DropClass deletes it.
	MakeClass struct{ Class *storagev1.StorageClass }
	DropClass struct{ Class *storagev1.StorageClass }
	// Order creates a filler claim.
	Order struct{ Claim *corev1.PersistentVolumeClaim }
	// Dismiss deletes a filler claim.
	Dismiss struct{ Claim *corev1.PersistentVolumeClaim }
	// StartPod creates a filler pod, StopPod deletes one.
	StartPod struct{ Pod *corev1.Pod }
	StopPod  struct{ Pod *corev1.Pod }
	// Change writes a volume that must be as it was when it was read.
	Change struct {
		From, To *corev1.PersistentVolume
		// Grave says that it cannot be taken back.
		Grave bool
	}
	// Remove deletes the object of a volume that must be as it was when it was read.
	Remove struct{ Volume *corev1.PersistentVolume }
	// WriteStatus writes the set's status.
	WriteStatus struct {
		Status tarnv1.PersistentVolumeSetStatus
	}
	// Post posts an Event about the set.
	Post struct{ Type, Reason, Note string }
)

func (Hold) action()        {}
func (LetGo) action()       {}
func (MakeClass) action()   {}
func (DropClass) action()   {}
func (Order) action()       {}
func (Dismiss) action()     {}
func (StartPod) action()    {}
func (StopPod) action()     {}
func (Change) action()      {}
func (Remove) action()      {}
func (WriteStatus) action() {}
func (Post) action()        {}

// grave says that a plan must rest on what the API server has: a cache that is behind
// would make a volume too many, or destroy one that is not what it was.
func (p Plan) grave() bool {
	return slices.ContainsFunc(p.Actions, func(a Action) bool {
		switch a := a.(type) {
		case Order, Dismiss, Remove, LetGo:
			return true
		case Change:
			return a.Grave
		}
		return false
	})
}

func (p *Plan) add(actions ...Action) { p.Actions = append(p.Actions, actions...) }

// plan decides about one pool.
func plan(v *View, now time.Time) Plan {
	var p Plan
	if v.Set == nil {
		return p
	}
	held := slices.Contains(v.Set.Finalizers, tarnv1.FinalizerPool)
	switch {
	case v.Set.DeletionTimestamp != nil && !held:
		return p
	case v.Set.DeletionTimestamp != nil:
		p.add(planEnd(v)...)
	case !held:
		p.add(Hold{})
	default:
		p.add(passage(v)...)
		p.add(size(v)...)
	}
	p.add(report(v, now)...)
	return p
}

// passage brings volumes from their filler claims into the pool.
func passage(v *View) []Action {
	var actions []Action
	for i := range v.Claims {
		actions = append(actions, passClaim(v, &v.Claims[i])...)
	}
	for i := range v.Pods { // whose claim has its volume, or is gone
		if pod := &v.Pods[i]; pod.DeletionTimestamp == nil && !needsPod(v, pod.Name) {
			actions = append(actions, StopPod{pod})
		}
	}
	return append(actions, passVolumes(v)...)
}

// passClaim brings the volume of a filler claim to where it no longer needs the claim.
func passClaim(v *View, claim *corev1.PersistentVolumeClaim) []Action {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	outdated := claim.Annotations[tarnv1.AnnotationPoolTemplate] != hashOf(&v.Set.Spec.Template)
	vol := v.volume(claim.Spec.VolumeName)
	switch {
	case claim.Status.Phase == corev1.ClaimLost:
		return []Action{Dismiss{claim}}
	case claim.Status.Phase != corev1.ClaimBound:
		if outdated {
			return []Action{Dismiss{claim}}
		}
		return startPod(v, claim)
	case vol == nil, vol.Spec.ClaimRef == nil, vol.Spec.ClaimRef.UID != claim.UID:
		return nil // the cache or the binder is behind; a volume that is gone makes the claim Lost
	case vol.DeletionTimestamp != nil:
		return []Action{Dismiss{claim}}
	case isFilling(vol) && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		return []Action{Dismiss{claim}}
	case outdated && !marked(vol):
		return []Action{Dismiss{claim}} // by the filler class' policy the volume goes with it
	case v.Class == nil:
		return nil // it says the policy
	}
	return []Action{Change{From: vol, To: mark(v, vol, claim)}}
}

// needsPod says that a filler claim waits for its first consumer.
func needsPod(v *View, claim string) bool {
	for i := range v.Claims {
		if c := &v.Claims[i]; c.Name == claim {
			return c.DeletionTimestamp == nil && c.Status.Phase != corev1.ClaimBound
		}
	}
	return false
}

func startPod(v *View, claim *corev1.PersistentVolumeClaim) []Action {
	if v.Filler == nil || !waits(v.Filler) {
		return nil
	}
	switch pod := v.pod(claim.Name); {
	case pod == nil:
		return []Action{StartPod{fillerPod(v, claim)}}
	case pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		return []Action{StopPod{pod}} // evicted, or its node has gone
	}
	return nil
}

// passVolumes brings volumes on whose filler claims are gone.
func passVolumes(v *View) []Action {
	var actions []Action
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		ref := vol.Spec.ClaimRef
		switch {
		case !madeBy(v.Set, vol), !marked(vol), vol.DeletionTimestamp != nil:
		case isFilling(vol):
			if v.holder(vol.Annotations[tarnv1.AnnotationPoolFilling]) == nil {
				actions = append(actions, Change{From: vol, To: free(vol), Grave: true})
			}
		case ref != nil, vol.Status.Phase == corev1.VolumeAvailable:
			actions = append(actions, Change{From: vol, To: settle(vol)})
		}
	}
	return actions
}

// size makes the pool as large as it should be: volumes are ordered, or given up.
func size(v *View) []Action {
	var actions []Action
	for i := range v.Volumes {
		actions = append(actions, finish(v, &v.Volumes[i])...)
	}
	n := count(v)
	if over := n.total - v.Set.Spec.MaximumReplicas - n.leaving; over > 0 {
		return append(actions, shrink(v, n, int(over))...)
	}
	trouble := troubleOf(v)
	if trouble != nil {
		return actions
	}
	if class := fillerClass(v.Set, v.Class); v.Filler == nil {
		actions = append(actions, MakeClass{class})
	} else if !sameClass(v.Filler, class) {
		actions = append(actions, DropClass{v.Filler}, MakeClass{class})
	}
	wanted := v.Set.Spec.MinimumReplicas
	if n.outdated > 0 {
		if n.spares > wanted {
			if n.leaving == 0 {
				actions = append(actions, giveUpOne(v, func(vol *corev1.PersistentVolume) bool { return outdated(v.Set, vol) })...)
			}
		} else {
			wanted++ // the new one comes before an old one goes
		}
	}
	return append(actions, order(v, min(wanted-n.spares-n.creating, v.Set.Spec.MaximumReplicas-n.total, fillingAtOnce-n.creating))...)
}

// order creates filler claims in the lowest free slots. A slot is a name, so whoever
// orders the same volume twice is told that it is ordered.
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

// shrink takes back what was ordered and is not there yet, and gives up the largest
// spare, one by one: each is looked at anew.
func shrink(v *View, n counts, over int) []Action {
	var actions []Action
	for i := len(v.Claims) - 1; i >= 0 && over > 0; i-- {
		if c := &v.Claims[i]; c.DeletionTimestamp == nil && c.Status.Phase != corev1.ClaimBound {
			actions = append(actions, Dismiss{c})
			over--
		}
	}
	if over > 0 && n.leaving == 0 {
		actions = append(actions, giveUpOne(v, func(*corev1.PersistentVolume) bool { return true })...)
	}
	return actions
}

// giveUpOne gives up the largest of the spares that may go.
func giveUpOne(v *View, may func(*corev1.PersistentVolume) bool) []Action {
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
	return []Action{
		Change{From: best, To: giveUp(v, best), Grave: true},
		Post{corev1.EventTypeNormal, eventGivenUp, fmt.Sprintf("spare volume %s is given up", best.Name)},
	}
}

// before orders spares by which should go first.
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

// mayGiveUp says that a volume is a spare and no other set's.
func mayGiveUp(v *View, vol *corev1.PersistentVolume) bool {
	whose := vol.Annotations[tarnv1.AnnotationPoolUID]
	return stateOf(vol, v.Namespace) == spare && (whose == "" || whose == string(v.Set.UID))
}

func outdated(set *tarnv1.PersistentVolumeSet, vol *corev1.PersistentVolume) bool {
	return madeBy(set, vol) && vol.Annotations[tarnv1.AnnotationPoolTemplate] != hashOf(&set.Spec.Template)
}

// finish deletes the object of a volume that this set has given up and that no
// provisioner deletes.
func finish(v *View, vol *corev1.PersistentVolume) []Action {
	ref := vol.Spec.ClaimRef
	if vol.DeletionTimestamp != nil || ref == nil || ref.UID != v.Set.UID || !givenUp(vol, v.Namespace) || provisionerDeletes(vol) {
		return nil
	}
	return []Action{Remove{vol}}
}

// planEnd ends a set: what was ordered is taken back, spares are given up or left,
// bound volumes are not touched.
func planEnd(v *View) []Action {
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
		steps, waits := endVolume(v, &v.Volumes[i], orphan)
		actions = append(actions, steps...)
		if waits {
			pending++
		}
	}
	if pending > 0 {
		return actions
	}
	if v.Filler != nil && madeFor(v.Set, v.Filler) {
		actions = append(actions, DropClass{v.Filler})
	}
	return append(actions, LetGo{})
}

// endClaim dismisses a filler claim. Its volume goes with it, unless it is marked
// and spares stay.
func endClaim(v *View, claim *corev1.PersistentVolumeClaim, orphan bool) []Action {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	vol := v.volume(claim.Spec.VolumeName)
	if vol == nil || !isFilling(vol) || vol.Spec.ClaimRef.UID != claim.UID {
		return []Action{Dismiss{claim}}
	}
	if orphan {
		return passClaim(v, claim)
	}
	return []Action{Change{From: vol, To: recall(vol), Grave: true}, Dismiss{claim}}
}

// endVolume does what is left to do about a volume when its set goes. waits says that
// more is to follow.
func endVolume(v *View, vol *corev1.PersistentVolume, orphan bool) (actions []Action, waits bool) {
	ours := madeBy(v.Set, vol)
	switch stateOf(vol, v.Namespace) {
	case spare:
		if !orphan && mayGiveUp(v, vol) {
			return []Action{Change{From: vol, To: giveUp(v, vol), Grave: true}}, true
		}
		if ours && marked(vol) {
			return []Action{Change{From: vol, To: settle(vol)}}, true
		}
	case joining:
		switch {
		case !ours || !marked(vol):
		case isFilling(vol) && v.holder(vol.Annotations[tarnv1.AnnotationPoolFilling]) != nil:
			return nil, true // the claim's turn
		case !orphan:
			return []Action{Change{From: vol, To: giveUp(v, vol), Grave: true}}, true
		case isFilling(vol):
			return []Action{Change{From: vol, To: free(vol), Grave: true}}, true
		default:
			return nil, true
		}
	case leaving:
		actions = finish(v, vol)
		return actions, len(actions) > 0
	default:
		if ours && marked(vol) {
			return []Action{Change{From: vol, To: settle(vol)}}, true
		}
	}
	return nil, false
}
