package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// plan decides about one pool.
func plan(v *View, now time.Time) Plan {
	var p Plan
	if v.Set == nil {
		return p
	}
	switch {
	case ended(v.Set):
		return p
	case v.Set.DeletionTimestamp != nil:
		p.add(planEnd(v, now)...)
	case !held(v.Set):
		p.add(Hold{})
	default:
		if minimum := follows(v); minimum != v.Set.Spec.MinimumReplicas {
			p.add(Follow{minimum}) // a rejected write delays nothing else
		}
		p.add(passage(v, now)...)
		p.add(size(v, now)...)
		p.Again = earlier(firstStuck(v, now), burstEnds(v, count(v), now))
	}
	return p
}

// earlier is the earlier of two times; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func held(set *tarnv1.PersistentVolumeSet) bool {
	return slices.Contains(set.Finalizers, tarnv1.FinalizerPool)
}

// ended reports whether a set is being deleted and nothing remains to do about it.
func ended(set *tarnv1.PersistentVolumeSet) bool { return set.DeletionTimestamp != nil && !held(set) }

// passage moves volumes from their filler claims into the pool.
func passage(v *View, now time.Time) []Action {
	var actions []Action
	for i := range v.Claims {
		actions = append(actions, passClaim(v, &v.Claims[i])...)
	}
	for i := range v.Pods { // pods whose claim has its volume, or is gone
		if pod := &v.Pods[i]; pod.DeletionTimestamp == nil && !needsPod(v, pod.Name) {
			actions = append(actions, StopPod{pod})
		}
	}
	return append(actions, passVolumes(v, now)...)
}

// passClaim moves the volume of a filler claim to where it no longer needs the claim.
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
	case vol.DeletionTimestamp != nil && isFilling(vol):
		return takeBack(vol, claim)
	case isFilling(vol) && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		return []Action{Dismiss{claim}}
	case vol.DeletionTimestamp != nil, outdated && !marked(vol), !isFilling(vol) && !madeForClaim(vol, claim):
		return discard(vol, claim)
	case v.Class == nil:
		return nil // the class has the intended policy
	}
	return []Action{Change{From: vol, To: mark(v, vol, claim)}}
}

// madeForClaim reports whether a volume bound to a filler claim was provisioned for it. Any
// other volume may hold data of earlier consumers.
func madeForClaim(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return vol.Annotations[volume.AnnProvisionedBy] != "" &&
		(strings.Contains(vol.Name, string(claim.UID)) || !vol.CreationTimestamp.Time.Before(claim.CreationTimestamp.Time))
}

// takeBack deletes the filler claim of a marked volume, so that its provisioner destroys the
// volume, which is empty.
func takeBack(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) []Action {
	if volume.DeletionProtected(vol) {
		return []Action{Dismiss{claim}}
	}
	return []Action{Together{Change{From: vol, To: recall(vol), Grave: true}, Dismiss{claim}}}
}

// discard deletes the filler claim of an unmarked volume. By the policy of the filler class,
// the volume is deleted with it. A volume that is protected, or was not made for the claim, is
// kept.
func discard(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) []Action {
	goes := !volume.DeletionProtected(vol) && madeForClaim(vol, claim)
	if goes || vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return []Action{Dismiss{claim}}
	}
	note := fmt.Sprintf("volume %s is bound to filler claim %s, and is protected or was not created for it; it is kept, with reclaim policy Retain", vol.Name, claim.Name)
	return []Action{Together{Change{From: vol, To: keep(vol)}, Dismiss{claim}, Post{corev1.EventTypeWarning, eventKept, note}}}
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

func startPod(v *View, claim *corev1.PersistentVolumeClaim) []Action {
	if v.Filler == nil || !waits(v.Filler) {
		return nil
	}
	switch pod := v.pod(claim.Name); {
	case pod == nil:
		return []Action{StartPod{fillerPod(v, claim)}}
	case pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		return []Action{StopPod{pod}} // evicted, or its node is gone
	}
	return nil
}

// passVolumes moves volumes on whose filler claims are gone.
func passVolumes(v *View, now time.Time) []Action {
	var actions []Action
	for i := range v.Volumes {
		vol := &v.Volumes[i]
		holder := v.holder(vol.Annotations[tarnv1.AnnotationPoolFilling])
		switch {
		case !madeBy(v.Set, vol), !marked(vol):
		case vol.DeletionTimestamp != nil:
			if isFilling(vol) && (holder == nil || holder.DeletionTimestamp != nil) && !volume.DeletionProtected(vol) {
				actions = append(actions, Change{From: vol, To: recall(vol), Grave: true})
			}
		case isFilling(vol):
			if holder == nil {
				actions = append(actions, Change{From: vol, To: free(vol, now), Grave: true})
			}
		case maySettle(v, vol):
			actions = append(actions, Change{From: vol, To: settle(vol), Grave: passed(vol)})
		}
	}
	return actions
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
