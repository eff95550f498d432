package volume

import (
	corev1 "k8s.io/api/core/v1"
)

// ClaimState is the present state of a claim by itself.
type ClaimState string

// The states of a claim.
const (
	ClaimUnbound   ClaimState = "Unbound"   // never bound, and names no volume
	ClaimPrebound  ClaimState = "Prebound"  // never bound, and names a volume
	ClaimCompleted ClaimState = "Completed" // was bound once
)

// StateOfClaim classifies a claim.
func StateOfClaim(claim *corev1.PersistentVolumeClaim) ClaimState {
	if _, completed := claim.Annotations[AnnBindCompleted]; completed {
		return ClaimCompleted
	}
	if claim.Spec.VolumeName != "" {
		return ClaimPrebound
	}
	return ClaimUnbound
}

// WasBound says whether a claim has or had a volume: pods may have been started on it.
func WasBound(claim *corev1.PersistentVolumeClaim) bool {
	phase := claim.Status.Phase
	return phase == corev1.ClaimBound || phase == corev1.ClaimLost || StateOfClaim(claim) == ClaimCompleted
}

// Link is the relation of a volume to one claim.
type Link string

// How a volume may be linked to a claim.
const (
	LinkMissing  Link = "Missing"  // there is no such volume
	LinkNone     Link = "None"     // it points at no claim
	LinkReserved Link = "Reserved" // it points at the claim by name, without a uid
	LinkHeld     Link = "Held"     // it points at the claim by uid
	LinkOther    Link = "Other"    // it points at another claim, or another of that name
)

// LinkOf classifies a volume, which may be nil, from a claim's point of view.
func LinkOf(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Link {
	switch {
	case v == nil:
		return LinkMissing
	case v.Spec.ClaimRef == nil:
		return LinkNone
	case !BoundTo(v, claim):
		return LinkOther
	case v.Spec.ClaimRef.UID == "":
		return LinkReserved
	}
	return LinkHeld
}

// State is the present state of a volume, together with the claim it points at.
type State string

// The states of a volume.
const (
	VolumeUnclaimed State = "Unclaimed" // it points at no claim
	VolumeReserved  State = "Reserved"  // it points at a claim by name alone
	VolumeOrphaned  State = "Orphaned"  // the claim it points at was deleted
	VolumeAwaited   State = "Awaited"   // its claim exists and names no volume yet
	VolumeMutual    State = "Mutual"    // it and its claim name each other
	VolumeSurplus   State = "Surplus"   // it was made for a claim that has another, and is to be destroyed
	VolumeStray     State = "Stray"     // its claim has another volume, and it is to be kept
)

// StateOf classifies a volume. claim is the claim with the name in the claimRef, or nil. It counts
// only if it has the UID in the claimRef.
func StateOf(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) State {
	ref := v.Spec.ClaimRef
	switch {
	case ref == nil:
		return VolumeUnclaimed
	case ref.UID == "":
		return VolumeReserved
	case claim == nil || claim.UID != ref.UID:
		return VolumeOrphaned
	case claim.Spec.VolumeName == "":
		return VolumeAwaited
	case claim.Spec.VolumeName == v.Name:
		return VolumeMutual
	}
	_, dynamic := v.Annotations[AnnProvisionedBy]
	if dynamic && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return VolumeSurplus
	}
	return VolumeStray
}
