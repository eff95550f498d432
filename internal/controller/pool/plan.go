package pool

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=create;delete,namespace=tarn-system
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets,verbs=patch
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets/status;persistentvolumesetscalers/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Plan is what to do, in this order. A failed action does not stop the next ones, except within
// action.Together.
type Plan struct {
	Actions []action.Action
	// Grave means that the plan must rest on the API server's state. With a stale cache it could
	// order one volume too many, or destroy a volume that has changed since.
	Grave bool
	// Ended means that no status is left to report once the actions are done: the set is let go,
	// or does not exist.
	Ended bool
	// Again is when to reconcile if no event arrives; zero means never.
	Again time.Time
}

func (p *Plan) add(actions ...action.Action) { p.Actions = append(p.Actions, actions...) }

func (p *Plan) addGrave(actions ...action.Action) {
	p.Grave = true
	p.add(actions...)
}

// dismiss deletes a filler claim.
func (p *Plan) dismiss(claim *corev1.PersistentVolumeClaim) { p.addGrave(action.Delete{Object: claim}) }

// plan decides about one pool.
func plan(v *View, now time.Time) Plan {
	var p Plan
	switch {
	case v.Set == nil, v.Set.DeletionTimestamp != nil && !held(v.Set):
		p.Ended = true
	case v.Set.DeletionTimestamp != nil:
		planEnd(v, &p, now)
	case !held(v.Set):
		p.add(action.AddFinalizer{Object: v.Set, Name: tarnv1.FinalizerPool})
	default:
		if minimum := follows(v); minimum != v.Set.Spec.MinimumReplicas {
			to := v.Set.DeepCopy()
			to.Spec.MinimumReplicas = minimum
			p.add(action.Patch{From: v.Set, To: to}) // a rejected write delays nothing else
		}
		passage(v, &p, now)
		size(v, &p, now)
		p.Again = kube.Sooner(firstStuck(v, now), burstEnds(v, count(v), now))
	}
	return p
}

func held(set *tarnv1.PersistentVolumeSet) bool {
	return slices.Contains(set.Finalizers, tarnv1.FinalizerPool)
}

// passage moves volumes from their filler claims into the pool.
func passage(v *View, p *Plan, now time.Time) {
	for i := range v.Claims {
		passClaim(v, p, &v.Claims[i])
	}
	for i := range v.Pods { // pods whose claim has its volume, or is gone
		if pod := &v.Pods[i]; pod.DeletionTimestamp == nil && !needsPod(v, pod.Name) {
			p.add(action.Delete{Object: pod})
		}
	}
	passVolumes(v, p, now)
}

// passClaim moves the volume of a filler claim to where it no longer needs the claim.
func passClaim(v *View, p *Plan, claim *corev1.PersistentVolumeClaim) {
	outdated := claim.Annotations[tarnv1.AnnotationPoolTemplate] != hashOf(&v.Set.Spec.Template)
	vol := v.volume(claim.Spec.VolumeName)
	switch {
	case claim.DeletionTimestamp != nil:
	case claim.Status.Phase == corev1.ClaimLost, claim.Status.Phase != corev1.ClaimBound && outdated:
		p.dismiss(claim)
	case claim.Status.Phase != corev1.ClaimBound:
		startPod(v, p, claim)
	case vol == nil, vol.Spec.ClaimRef == nil, vol.Spec.ClaimRef.UID != claim.UID:
		// The cache or the binder is behind. A volume that is gone makes the claim Lost.
	case vol.DeletionTimestamp != nil && isFilling(vol):
		takeBack(p, vol, claim)
	case isFilling(vol) && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		p.dismiss(claim)
	case vol.DeletionTimestamp != nil, outdated && !marked(vol), !isFilling(vol) && !madeForClaim(vol, claim):
		discard(v, p, vol, claim)
	case v.Class != nil: // it has the intended policy
		p.add(action.Patch{From: vol, To: mark(v, vol, claim)})
	}
}

// madeForClaim reports whether a volume bound to a filler claim was provisioned for it. Any
// other volume may hold data of earlier consumers.
func madeForClaim(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return vol.Annotations[volume.AnnProvisionedBy] != "" &&
		(strings.Contains(vol.Name, string(claim.UID)) || !vol.CreationTimestamp.Time.Before(claim.CreationTimestamp.Time))
}

// takeBack deletes the filler claim of a marked volume, so that its provisioner destroys the
// volume, which is empty.
func takeBack(p *Plan, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	if volume.DeletionProtected(vol) {
		p.dismiss(claim)
		return
	}
	p.addGrave(action.Together{action.Patch{From: vol, To: recall(vol)}, action.Delete{Object: claim}})
}

// discard deletes the filler claim of an unmarked volume. By the policy of the filler class,
// the volume is deleted with it. A volume that is protected, or was not made for the claim, is
// kept.
func discard(v *View, p *Plan, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	goes := !volume.DeletionProtected(vol) && madeForClaim(vol, claim)
	if goes || vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		p.dismiss(claim)
		return
	}
	p.addGrave(action.Together{action.Patch{From: vol, To: keep(vol)}, action.Delete{Object: claim}, v.kept(
		"volume %s is bound to filler claim %s, and is protected or was not created for it; it is kept, with reclaim policy Retain", vol.Name, claim.Name)})
}

// needsPod reports whether a filler claim waits for its first consumer.
func needsPod(v *View, claim string) bool {
	for i := range v.Claims {
		if c := &v.Claims[i]; c.Name == claim {
			return c.DeletionTimestamp == nil && c.Status.Phase != corev1.ClaimBound
		}
	}
	return false
}

func startPod(v *View, p *Plan, claim *corev1.PersistentVolumeClaim) {
	if v.Filler == nil || !waits(v.Filler) {
		return
	}
	switch pod := v.pod(claim.Name); {
	case pod == nil:
		p.add(action.Create{Object: fillerPod(v, claim)})
	case pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		p.add(action.Delete{Object: pod}) // evicted, or its node is gone
	}
}

// passVolumes moves volumes on whose filler claims are gone.
func passVolumes(v *View, p *Plan, now time.Time) {
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		holder := v.holder(vol)
		switch {
		case !madeBy(v.Set, vol), !marked(vol):
		case vol.DeletionTimestamp != nil:
			if isFilling(vol) && (holder == nil || holder.DeletionTimestamp != nil) && !volume.DeletionProtected(vol) {
				p.addGrave(action.Patch{From: vol, To: recall(vol)})
			}
		case isFilling(vol):
			if holder == nil {
				p.addGrave(action.Patch{From: vol, To: free(vol, now)})
			}
		case maySettle(v, vol):
			p.Grave = p.Grave || passed(vol)
			p.add(action.Patch{From: vol, To: settle(vol)})
		}
	}
}

// maySettle reports whether a marked volume that has left its filler claim can get its intended
// policy. It can if it has a claim, is Available, or its next claim is gone too. While it is
// Released for another cause, its provisioner would destroy it by phase and policy. That
// includes a volume just bound to a claim, because binders write the phase afterwards.
func maySettle(v *View, vol *corev1.PersistentVolume) bool {
	switch {
	case vol.Spec.ClaimRef == nil:
		return vol.Status.Phase == corev1.VolumeAvailable && !v.Claimed[vol.Name]
	case vol.Status.Phase == corev1.VolumeReleased:
		return vol.Spec.ClaimRef.UID != "" && !v.Claimed[vol.Name]
	}
	return true
}

// passed reports whether a marked volume is Released with another claim than its filler claim
// in claimRef. Either that claim released it, or the phase is still from the filler claim.
func passed(vol *corev1.PersistentVolume) bool {
	return marked(vol) && !isFilling(vol) && vol.Spec.ClaimRef != nil && vol.Status.Phase == corev1.VolumeReleased
}
