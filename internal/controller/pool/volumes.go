package pool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// state is what a volume is to the pool; a closed set.
type state string

const (
	// spare: Available and nobody's.
	spare state = "Spare"
	// joining: on its way into the pool: still its filler claim's, or nobody's and not
	// Available yet.
	joining state = "Joining"
	// used: a claim's, or reserved for one.
	used state = "Used"
	// recycling: released, and to be Available again, or at its scrub claim.
	recycling state = "Recycling"
	// released: its claim is gone and its data is there.
	released state = "Released"
	// failed: could not be reclaimed.
	failed state = "Failed"
	// leaving: being deleted, or given up by a pool.
	leaving state = "Leaving"
)

// stateOf: a volume that points at no claim is used all the same where a claim points
// at it; the binder repairs that.
func (v *View) stateOf(vol *corev1.PersistentVolume) state {
	if vol.DeletionTimestamp == nil && vol.Spec.ClaimRef == nil && v.Claimed[vol.Name] {
		return used
	}
	state := stateOf(vol, v.Namespace)
	if state == released && v.recycles(vol) {
		return recycling
	}
	return state
}

// recycles says that a released volume is not kept for its former claim, and will be
// recycled by a method that it or its class names.
func (v *View) recycles(vol *corev1.PersistentVolume) bool {
	class := v.Class
	if class != nil && class.Name != volume.ClassOfVolume(vol) {
		class = nil
	}
	return volume.RecycleMethodOf(vol, class) != "" && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && !volume.Held(vol)
}

// isScrubbed says that a volume points at its scrub claim.
func isScrubbed(vol *corev1.PersistentVolume, namespace string) bool {
	ref := vol.Spec.ClaimRef
	return ref.Namespace == namespace && ref.Name == volume.ScrubClaim(vol)
}

// stateOf goes by the volume alone.
func stateOf(vol *corev1.PersistentVolume, namespace string) state {
	ref := vol.Spec.ClaimRef
	switch {
	case vol.DeletionTimestamp != nil:
		return leaving
	case ref == nil && vol.Status.Phase == corev1.VolumeAvailable:
		return spare
	case ref == nil: // the binder is about to say so
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

// marked says that a volume is on the passage from its filler claim into the pool.
func marked(vol *corev1.PersistentVolume) bool {
	return vol.Annotations[tarnv1.AnnotationPoolFilling] != ""
}

// isFilling says that a marked volume still points at its filler claim.
func isFilling(vol *corev1.PersistentVolume) bool {
	ref := vol.Spec.ClaimRef
	return marked(vol) && ref != nil && string(ref.UID) == vol.Annotations[tarnv1.AnnotationPoolFilling]
}

// unused says that nobody has drawn a settled volume since it joined the pool: it was
// Available all the time. A time has whole seconds, so who had it for less is known by what
// the binder has noted.
func unused(vol *corev1.PersistentVolume) bool {
	at, since := vol.Status.LastPhaseTransitionTime, vol.Annotations[tarnv1.AnnotationPoolUnused]
	return !marked(vol) && vol.Status.Phase == corev1.VolumeAvailable && vol.Annotations[volume.AnnBoundByController] == "" && at != nil && since != "" && since == at.UTC().Format(time.RFC3339)
}

// freedWithin is how long after it was freed a volume may become Available and still
// count as never drawn. The binder takes less than a second; the rest is for clocks.
const freedWithin = time.Minute

// justFreed says that a marked volume is Available for the first time since it was
// freed. Else somebody may have drawn and released it, and an administrator cleared
// its claimRef, all before the pool looked again.
func justFreed(vol *corev1.PersistentVolume) bool {
	at := vol.Status.LastPhaseTransitionTime
	freed, err := time.Parse(time.RFC3339, vol.Annotations[tarnv1.AnnotationPoolUnused])
	return err == nil && at != nil && vol.Spec.ClaimRef == nil && vol.Status.Phase == corev1.VolumeAvailable &&
		vol.Annotations[volume.AnnBoundByController] == "" && at.Sub(freed).Abs() <= freedWithin
}

// emptied says that a volume was recycled and nobody has drawn it since: its certificate
// says when it was made nobody's, and it became Available then and not later. Whoever
// recycles takes that off when somebody has left the volume; the rest is for a controller
// that was away then. A certificate of an earlier Tarn does not say it.
func emptied(vol *corev1.PersistentVolume) bool {
	at, cert := vol.Status.LastPhaseTransitionTime, volume.CertificateOf(vol)
	return cert != nil && cert.Claim != "" && cert.Freed != nil && vol.Annotations[tarnv1.AnnotationRecycleFailure] == "" &&
		vol.Spec.ClaimRef == nil && vol.Status.Phase == corev1.VolumeAvailable && at != nil &&
		vol.Annotations[volume.AnnBoundByController] == "" && at.Sub(cert.Freed.Time).Abs() <= freedWithin
}

// provisionerDeletes says that the volume's provisioner destroys it, object and
// storage, once it is released.
func provisionerDeletes(vol *corev1.PersistentVolume) bool {
	return vol.Annotations[volume.AnnProvisionedBy] != "" && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

func fillerPrefix(set types.UID) string { return volume.PoolPrefix + string(set) + "-" }
