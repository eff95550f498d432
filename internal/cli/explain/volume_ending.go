package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// endingVolume finds what keeps a volume that is being deleted.
func (s *story) endingVolume(v *volumeView) {
	vol, ref, o := v.Volume, v.Volume.Spec.ClaimRef, Object{Volume, "", v.Name}
	hidden := ref != nil && s.view.unknown(Claim, ref.Namespace, ref.Name)
	protected := slices.Contains(vol.Finalizers, volumeProtection)
	switch {
	case v.hasClaim() && protected:
		s.heldByClaim(v)
	case v.hasClaim():
		s.lentOut(v, o)
		return
	case protected && vol.Status.Phase != corev1.VolumeBound && !hidden:
		since := vol.DeletionTimestamp.Time
		if t := vol.Status.LastPhaseTransitionTime; t != nil && t.After(since) { // it was Bound until then
			since = t.Time
		}
		s.protectionSilent(o, since, ref == nil || vol.Status.Phase != corev1.VolumeAvailable, "no claim is bound to it")
	case protected && vol.Status.Phase == corev1.VolumeBound && s.unseenByBinder(v): // then the protection controller waits for a binder
	case protected:
		s.keepers(o, "pv", vol, "", false)
		return
	}
	if !protected && v.toGoWithItsStorage() {
		s.toBeDeleted(v, s.leftBy(v))
	}
	lingers, _ := s.lingering(v)
	s.keepers(o, "pv", vol, volumeProtection, !hidden && lingers == "")
}

// toGoWithItsStorage says whether a volume that is being deleted waits until its provisioner has
// destroyed its storage.
func (v *volumeView) toGoWithItsStorage() bool {
	vol := v.Volume
	if vol.Spec.ClaimRef == nil || vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		vol.Status.Phase != corev1.VolumeReleased && vol.Status.Phase != corev1.VolumeFailed {
		return false
	}
	theirs := vol.Annotations[volume.AnnProvisionedBy] != "" && vol.Annotations[tarnv1.AnnotationRecord] == "" && slices.Contains(vol.Finalizers, volume.FinalizerExternal)
	return v.Record != nil || theirs
}

// hasClaim says whether the claim that a volume names exists and has no other volume.
func (v *volumeView) hasClaim() bool {
	ref := v.Volume.Spec.ClaimRef
	return ref != nil && v.Claim != nil && v.Claim.UID == ref.UID && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.Volume.Name)
}

// heldByClaim says that a volume being deleted waits for its claim.
func (s *story) heldByClaim(v *volumeView) {
	link := s.add(Link{Object: Object{Claim, v.Claim.Namespace, v.Claim.Name}, State: string(v.Claim.Status.Phase),
		Message: "it is bound to the volume, which " + volumeProtection + " keeps until then", Next: "when the claim is gone; the volume can be used until then"})
	if v.Claim.Spec.VolumeName == "" { // no binder binds a claim to a volume that is being deleted
		link.Message = "it was to get the volume, which " + volumeProtection + " keeps until then; it no longer gets it, as the volume is being deleted"
		link.Next = "when the claim is gone; if it is created again, it gets another volume"
		s.blame("claim %s/%s was to get it and no longer can", v.Claim.Namespace, v.Claim.Name)
	} else {
		s.blame("claim %s/%s uses it%s", v.Claim.Namespace, v.Claim.Name, v.usedBy())
	}
	s.endOfClaim(v, link)
}

// lentOut is about a volume that is being deleted while its claim uses it. Finalizers keep it, but
// none of them waits for the claim.
func (s *story) lentOut(v *volumeView, o Object) {
	s.keepers(o, "pv", v.Volume, "", false)
	if s.cause == "" {
		return
	}
	s.cause += fmt.Sprintf("; claim %s/%s uses it%s", v.Claim.Namespace, v.Claim.Name, v.usedBy())
	s.links[len(s.links)-1].Message += "; the volume is deleted with the last of its finalizers, and its claim is then Lost"
	if s.view.Asked.Kind != Volume {
		return
	}
	link := s.add(Link{Object: Object{Claim, v.Claim.Namespace, v.Claim.Name}, State: string(v.Claim.Status.Phase), Message: "it is bound to the volume, and nothing keeps the volume until the claim is gone",
		Next: "when the claim is gone, and then the finalizer's owner removes the finalizer"})
	s.endOfClaim(v, link)
}

// usedBy words the pods that keep the claim of a volume; empty for none.
func (v *volumeView) usedBy() string {
	var names []string
	for _, u := range v.Users {
		if holds(u.Pod, v.Claim) {
			names = append(names, u.Pod.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", which is used by pod " + join(names)
}

// endOfClaim says what happens to the data when the volume's claim is deleted. It offers that
// command only if the user asked for the volume and no pod uses the claim.
func (s *story) endOfClaim(v *volumeView, link *Link) {
	switch used := v.usedBy(); {
	case s.view.Asked.Kind != Volume || v.Claim.DeletionTimestamp != nil || s.view.unknown(Pod, v.Claim.Namespace, ""):
		link.Message += "; when it is deleted, " + fate(v.Volume)
	case used != "":
		link.Message += used + "; when those are gone and the claim is deleted, " + fate(v.Volume)
	default:
		link.Command, link.offer = kubectl(v.Claim.Namespace, "delete", "pvc", v.Claim.Name), "the command deletes the claim, and "+fate(v.Volume)
	}
}

// fate says what happens to the data of a volume being deleted when its claim is deleted. A volume
// in the trash has policy Retain, so its storage stays.
func fate(vol *corev1.PersistentVolume) string {
	policy := vol.Spec.PersistentVolumeReclaimPolicy
	if policy == corev1.PersistentVolumeReclaimRetain {
		return "its storage stays, by policy Retain, but no volume records it"
	}
	return fmt.Sprintf("its data is deleted too, by policy %s; to keep it, first: %s", policy,
		kubectl("", "patch", "pv", vol.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`))
}
