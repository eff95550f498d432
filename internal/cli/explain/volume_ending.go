package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// endingVolume finds out what keeps a volume that is to go.
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
	case protected && vol.Status.Phase == corev1.VolumeBound && s.unseenByBinder(v): // protection waits for a binder then
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

// toGoWithItsStorage says that a volume which is to go is kept by whoever has to destroy its
// storage first.
func (v *volumeView) toGoWithItsStorage() bool {
	vol := v.Volume
	if vol.Spec.ClaimRef == nil || vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		vol.Status.Phase != corev1.VolumeReleased && vol.Status.Phase != corev1.VolumeFailed {
		return false
	}
	theirs := vol.Annotations[volume.AnnProvisionedBy] != "" && vol.Annotations[tarnv1.AnnotationRecord] == "" && slices.Contains(vol.Finalizers, volume.FinalizerExternal)
	return v.Record != nil || theirs
}

// hasClaim says that the claim which a volume names is there and has no other.
func (v *volumeView) hasClaim() bool {
	ref := v.Volume.Spec.ClaimRef
	return ref != nil && v.Claim != nil && v.Claim.UID == ref.UID && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.Volume.Name)
}

// heldByClaim says that a volume which is to go waits for its claim.
func (s *story) heldByClaim(v *volumeView) {
	link := s.add(Link{Object: Object{Claim, v.Claim.Namespace, v.Claim.Name}, State: string(v.Claim.Status.Phase),
		Message: "it is bound to the volume, which " + volumeProtection + " keeps until then", Next: "when the claim is gone; the volume can be used until then"})
	if v.Claim.Spec.VolumeName == "" { // no binder gives a claim what is to go
		link.Message = "it was to get the volume, which " + volumeProtection + " keeps until then; it no longer gets it, as the volume is being deleted"
		link.Next = "when the claim is gone; if it is created again, it gets another volume"
		s.blame("claim %s/%s was to get it and no longer can", v.Claim.Namespace, v.Claim.Name)
	} else {
		s.blame("claim %s/%s uses it%s", v.Claim.Namespace, v.Claim.Name, v.usedBy())
	}
	s.endOfClaim(v, link)
}

// lentOut is about a volume that is to go, that its claim has, and that finalizers keep of
// which none waits for the claim.
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

// usedBy names the pods that keep the claim of a volume, empty for none.
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

// endOfClaim says what becomes of the data when the claim goes that has a volume. The command
// that ends the claim is for who asks for the volume alone, and where no pod uses the claim.
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

// fate says what becomes of the data of a volume that is to go when its claim does. One
// that the trash holds has policy Retain, and its storage stays as with that.
func fate(vol *corev1.PersistentVolume) string {
	policy := vol.Spec.PersistentVolumeReclaimPolicy
	if policy == corev1.PersistentVolumeReclaimRetain {
		return "its storage stays, by policy Retain, but no volume records it"
	}
	return fmt.Sprintf("its data is deleted too, by policy %s; to keep it, first: %s", policy,
		kubectl("", "patch", "pv", vol.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`))
}
