package bind

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/volume"
)

// planVolume decides about one volume. The claim's reconcile does what joining to a claim needs, so
// that each write happens once.
func planVolume(v *VolumeView) Plan {
	p := Plan{}
	d := &volumeDraft{object: v.Volume}
	d.maintain()
	switch volume.StateOf(v.Volume, v.Claim) {
	case volume.VolumeUnclaimed:
		planUnclaimed(&p, d, v)
	case volume.VolumeReserved:
		if taker := v.Claim; taker != nil && willTake(v.Volume, taker) {
			enqueueClaim(&p, d, taker)
			break
		}
		planPhase(&p, d, corev1.VolumeAvailable)
	case volume.VolumeOrphaned:
		if gone(v.Volume) {
			planPhase(&p, d, v.Volume.Status.Phase)
			break
		}
		if p.NeedsLiveRead = !v.Asked; p.NeedsLiveRead {
			break // the cache alone is no proof for Released
		}
		planPhase(&p, d, corev1.VolumeReleased)
	case volume.VolumeAwaited:
		planAwaited(&p, d, v)
	case volume.VolumeMutual:
		planPhase(&p, d, corev1.VolumeBound)
	case volume.VolumeSurplus:
		if gone(v.Volume) {
			planPhase(&p, d, v.Volume.Status.Phase)
			break
		}
		planPhase(&p, d, corev1.VolumeReleased)
	case volume.VolumeStray:
		d.unlink()
		planPhase(&p, d, corev1.VolumeAvailable)
	}
	return p
}

// planUnclaimed offers a volume to all claims, unless one that names it is about to take it.
func planUnclaimed(p *Plan, d *volumeDraft, v *VolumeView) {
	if v.Taker != nil {
		enqueueClaim(p, d, v.Taker)
		return
	}
	if _, stale := d.object.Annotations[volume.AnnBoundByController]; stale {
		v := d.edit()
		volume.Drawn(v) // Kubernetes' binder may have given it to a claim
		removeAnnotation(&v.Annotations, volume.AnnBoundByController)
	}
	planPhase(p, d, corev1.VolumeAvailable)
}

// planAwaited leaves a volume to the claim it points at, unless the claim can never use it.
func planAwaited(p *Plan, d *volumeDraft, v *VolumeView) {
	if volume.ModeOfVolume(v.Volume) == volume.ModeOf(v.Claim) {
		enqueueClaim(p, d, v.Claim)
		return
	}
	note := volume.Explain(volume.MisfitMode, v.Volume, v.Claim)
	p.post(OnVolume, corev1.EventTypeWarning, reasonMismatch, "cannot bind to claim %s/%s: %s", v.Claim.Namespace, v.Claim.Name, note)
	p.post(OnClaim, corev1.EventTypeWarning, reasonMismatch, "cannot bind to the volume that references the claim: %s", note)
	planPhase(p, d, v.Volume.Status.Phase)
}

// gone says that the volume's phase already shows that its claim is gone.
func gone(v *corev1.PersistentVolume) bool {
	return v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
}

// planPhase adds the writes of a changed volume and of its phase.
func planPhase(p *Plan, d *volumeDraft, phase corev1.PersistentVolumePhase) {
	if d.changed {
		p.add(WriteVolume{d.object})
	}
	if d.object.Status.Phase != phase {
		p.add(WriteVolumeStatus{inPhase(d.object, phase, "")})
	}
}

// enqueueClaim leaves the volume to a claim: it enqueues the claim.
func enqueueClaim(p *Plan, d *volumeDraft, claim *corev1.PersistentVolumeClaim) {
	planPhase(p, d, d.object.Status.Phase)
	p.add(EnqueueClaim{types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}})
}

// expectsClaim says whether a volume is new and reserved for a claim that does not exist yet.
// Usually the claim is created right after it and binds it whatever its phase. Setting Available
// first would cost a write that the claim had to wait for.
func expectsClaim(v *VolumeView) bool {
	return v.Claim == nil && v.Volume.Status.Phase == corev1.VolumePending && volume.StateOf(v.Volume, nil) == volume.VolumeReserved
}

// willTake says whether a claim is about to be bound to the volume that is reserved for its name.
func willTake(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	if claim.DeletionTimestamp != nil {
		return false
	}
	switch volume.StateOfClaim(claim) {
	case volume.ClaimUnbound:
		return volume.Reserved(v, claim) == volume.Fits
	case volume.ClaimPrebound:
		return claim.Spec.VolumeName == v.Name
	}
	return false
}

// willTakeNamed says whether a claim is about to be bound to the volume that it names and whose
// claimRef is empty.
func willTakeNamed(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	switch volume.StateOfClaim(claim) {
	case volume.ClaimCompleted:
		return true
	case volume.ClaimPrebound:
		return claim.DeletionTimestamp == nil && volume.Named(v, claim) == volume.Fits
	}
	return false
}
