package pool

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// state is what a volume is to the pool; a closed set.
type state string

const (
	// spare: Available, and no claim wants it.
	spare state = "Spare"
	// lost: a spare that no node can use, because its node was deleted.
	lost state = "Lost"
	// joining: on its way into the pool. It has its filler claim, or has no claim and is not
	// Available yet.
	joining state = "Joining"
	// used: bound to a claim, or reserved for one.
	used state = "Used"
	// recycling: released and to be recycled, or bound to its scrub claim.
	recycling state = "Recycling"
	// released: its claim is gone, its data is not.
	released state = "Released"
	// failed: could not be reclaimed.
	failed state = "Failed"
	// leaving: being deleted, or given up by a pool.
	leaving state = "Leaving"
)

// stateOf is the state of a volume in the view. A volume without claimRef is used if a claim
// names it; the binder repairs the claimRef.
func (v *View) stateOf(vol *corev1.PersistentVolume) state {
	if vol.DeletionTimestamp == nil && vol.Spec.ClaimRef == nil && v.Claimed[vol.Name] {
		return used
	}
	switch state := stateOf(vol, v.Namespace); {
	case state == released && v.recycles(vol):
		return recycling
	case state == spare && v.Lost[vol.Name]:
		return lost
	default:
		return state
	}
}

// recycles reports whether a released volume will be recycled, by a method that it or its class
// names. A volume kept for its former claim will not.
func (v *View) recycles(vol *corev1.PersistentVolume) bool {
	class := v.Class
	if class != nil && class.Name != volume.ClassOfVolume(vol) {
		class = nil
	}
	return volume.RecycleMethodOf(vol, class) != "" && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && !volume.Held(vol)
}

// isScrubbed reports whether a volume points at its scrub claim.
func isScrubbed(vol *corev1.PersistentVolume, namespace string) bool {
	ref := vol.Spec.ClaimRef
	return ref.Namespace == namespace && ref.Name == volume.ScrubClaim(vol)
}

// stateOf is the state that follows from the volume alone.
func stateOf(vol *corev1.PersistentVolume, namespace string) state {
	ref := vol.Spec.ClaimRef
	switch {
	case vol.DeletionTimestamp != nil:
		return leaving
	case ref == nil && vol.Status.Phase == corev1.VolumeAvailable:
		return spare
	case ref == nil: // the binder has yet to make it Available
		return joining
	case volume.GivenUp(vol, namespace):
		return leaving
	case isFilling(vol):
		return joining
	case vol.Status.Phase == corev1.VolumeFailed:
		return failed
	case isScrubbed(vol, namespace):
		return recycling
	case vol.Status.Phase != corev1.VolumeReleased:
		return used
	case vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle:
		return recycling
	}
	return released
}

// marked reports whether a volume is on its way from its filler claim into the pool.
func marked(vol *corev1.PersistentVolume) bool {
	return vol.Annotations[tarnv1.AnnotationPoolFilling] != ""
}

// isFilling reports whether a marked volume still points at its filler claim.
func isFilling(vol *corev1.PersistentVolume) bool {
	ref := vol.Spec.ClaimRef
	return marked(vol) && ref != nil && string(ref.UID) == vol.Annotations[tarnv1.AnnotationPoolFilling]
}

// unused reports whether no claim has drawn a settled volume since it joined the pool: it was
// Available all the time. Times have whole seconds, so the binder's annotation shows a claim
// that had it for less.
func unused(vol *corev1.PersistentVolume) bool {
	at, since := vol.Status.LastPhaseTransitionTime, vol.Annotations[tarnv1.AnnotationPoolUnused]
	return !marked(vol) && vol.Status.Phase == corev1.VolumeAvailable && vol.Annotations[volume.AnnBoundByController] == "" && at != nil && since != "" && since == at.UTC().Format(time.RFC3339)
}

// freedWithin is how soon after it was freed a volume must become Available to count as never
// drawn. The binder takes less than a second; the rest allows for clock differences.
const freedWithin = time.Minute

// justFreed reports whether a marked volume is Available for the first time since it was freed.
// Otherwise a claim may have drawn and released it, and an administrator cleared its claimRef,
// all between two reconciles of the pool.
func justFreed(vol *corev1.PersistentVolume) bool {
	at := vol.Status.LastPhaseTransitionTime
	freed, err := time.Parse(time.RFC3339, vol.Annotations[tarnv1.AnnotationPoolUnused])
	return err == nil && at != nil && vol.Spec.ClaimRef == nil && vol.Status.Phase == corev1.VolumeAvailable &&
		vol.Annotations[volume.AnnBoundByController] == "" && at.Sub(freed).Abs() <= freedWithin
}

// emptied reports whether a volume was recycled and not drawn since. Its certificate says when
// it was freed, and it became Available then and not later. The recycle controller removes the
// certificate when a claim has used the volume. The times cover the case that this controller
// was down then. A certificate of an earlier Tarn has no such time.
func emptied(vol *corev1.PersistentVolume) bool {
	at, cert := vol.Status.LastPhaseTransitionTime, volume.CertificateOf(vol)
	return cert != nil && cert.Claim != "" && cert.Freed != nil && vol.Annotations[tarnv1.AnnotationRecycleFailure] == "" &&
		vol.Spec.ClaimRef == nil && vol.Status.Phase == corev1.VolumeAvailable && at != nil &&
		vol.Annotations[volume.AnnBoundByController] == "" && at.Sub(cert.Freed.Time).Abs() <= freedWithin
}

// provisionerDeletes reports whether the volume's provisioner destroys it, object and storage,
// once it is released.
func provisionerDeletes(vol *corev1.PersistentVolume) bool {
	return vol.Annotations[volume.AnnProvisionedBy] != "" && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

func fillerPrefix(set types.UID) string { return volume.PoolPrefix + string(set) + "-" }

func fillerName(set *tarnv1.PersistentVolumeSet, slot int) string {
	return fmt.Sprint(fillerPrefix(set.UID), slot)
}
