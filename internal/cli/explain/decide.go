package explain

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/volume"
)

// byNobody says when a volume with policy Delete but no provisioner is deleted.
const byNobody = "when an administrator removes the storage by hand, and then the volume: no provisioner made it, so none retries"

// hasMaker says whether a provisioner has created the volume's storage, so that it may also destroy
// it.
func hasMaker(vol *corev1.PersistentVolume) bool {
	_, served := volume.DriverFor(vol.Annotations[volume.AnnProvisionedBy])
	return served
}

// failedVolume is about a volume whose reclaiming failed.
func (s *story) failedVolume(v *volumeView, link *Link) {
	s.blame("%s", cmp.Or(v.Volume.Status.Message, "the action after the release of its claim failed"))
	e := newest(v.Events, "VolumeFailedDelete", "VolumeFailedRecycle", "VolumeUnknownReclaimPolicy")
	if e != nil {
		link.Reason, link.Message = e.Reason, e.Message
	}
	switch {
	case v.Record == nil && v.Volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && !hasMaker(v.Volume):
		link.Next = byNobody
		s.letGo(v, link)
	case e != nil:
		link.Next = "when its provisioner retries; " + s.lastTry(e)
	}
}

// undecided is about a released volume that its policy keeps. It does not offer to free the volume
// for any claim if some claim names it already.
func (s *story) undecided(v *volumeView, link *Link, left string) {
	vol := v.Volume
	link.Next = "when an administrator decides"
	s.blame("%s, and policy Retain keeps the volume and its data until an administrator decides", left)
	switch {
	case len(v.Claimants) > 0:
		s.wanted(v, link)
	case !s.gone(v):
	case hasMaker(vol):
		link.Next += ": the command frees it for any claim, with its data; to have it destroyed instead: " +
			kubectl("", "patch", "pv", vol.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		link.Command = free(vol)
	default:
		link.Next += ": the command frees it for any claim, with its data; to delete only the PersistentVolume and keep its storage and data: " +
			kubectl("", "delete", "pv", vol.Name)
		link.Command = free(vol)
	}
}

// wanted is about a released volume that claims name in spec.volumeName. One of them gets it by a
// complete spec.claimRef.
func (s *story) wanted(v *volumeView, link *Link) {
	var names []string
	for _, claim := range v.Claimants {
		o := Object{Claim, claim.Namespace, claim.Name}
		names = append(names, o.fullName())
		s.add(Link{Object: o, State: string(claim.Status.Phase), Message: fmt.Sprintf("its spec.volumeName is %s; its uid is %s", v.Name, claim.UID)})
	}
	if len(names) > 1 {
		link.Next = "when an administrator decides which claim gets it"
		s.blame("%s; claims %s name it", s.cause, join(names))
		return
	}
	claim := v.Claimants[0]
	s.blame("%s; claim %s names it by spec.volumeName", s.cause, names[0])
	if link.wouldFit(volume.Named(v.Volume, claim), v.Volume, claim) && s.gone(v) {
		link.Next += ": the command reserves it for that claim alone, with its data, by a complete spec.claimRef: namespace, name and UID"
		link.Command = give(v.Volume, claim)
	}
}

// inVain reports a volume reserved for a claim that can never have it, and says whether it is one.
func (s *story) inVain(v *volumeView, link *Link) bool {
	vol, claim, ref := v.Volume, v.Claim, v.Volume.Spec.ClaimRef
	switch vol.Status.Phase {
	case corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed:
		return false
	}
	if ref == nil {
		return false
	}
	o := Object{Claim, ref.Namespace, ref.Name}
	const changed = ", or spec.claimRef of the volume is changed"
	switch {
	case ref.Namespace == "" || ref.Name == "":
		s.incomplete(vol, link)
	case claim == nil && v.NoNamespace:
		link.Next = "when namespace " + ref.Namespace + " is created, and the claim in it" + changed
		s.blame("it is reserved for %s, and there is no namespace %s", o, ref.Namespace)
	case claim == nil:
		return false
	case ref.UID != "" && ref.UID != claim.UID:
		link.Next = "when a binder reconciles it; the volume is then Released"
		s.blame("it is reserved for %s by UID %s, and %s", o, ref.UID, another(claim))
	case claim.Spec.VolumeName == vol.Name: // they name each other, which is all that the binder checks
		return false
	case claim.Spec.VolumeName != "":
		s.hasOther(v, link, o)
	default:
		m := volume.Reserved(vol, claim)
		if m == volume.Fits {
			return false
		}
		link.Reason, link.Message = string(m), link.Message+"; "+volume.Explain(m, vol, claim)
		link.Next = "when the claim is created again so that the volume fits; tarn explain claim " + o.fullName() + " says more"
		s.blame("it is reserved for %s, which it does not fit: %s", o, volume.Explain(m, vol, claim))
	}
	return true
}

// hasOther is about a volume reserved for a claim that has, or names, another volume. A claim that
// has another one must not be created again: its data is on that other volume.
func (s *story) hasOther(v *volumeView, link *Link, o Object) {
	has := "names"
	link.Next = "when the claim is created again without spec.volumeName, or spec.claimRef of the volume is changed"
	if volume.WasBound(v.Claim) {
		has, link.Next = "has", "when spec.claimRef of the volume is changed: the claim keeps the volume that it has"
	}
	if v.Volume.Spec.ClaimRef.UID != "" {
		link.Next = "when a binder reconciles it"
	}
	s.add(Link{Object: o, State: string(v.Claim.Status.Phase), Message: fmt.Sprintf("it %s volume %s", has, v.Claim.Spec.VolumeName)})
	s.blame("it is reserved for %s, which %s another volume, %s", o, has, v.Claim.Spec.VolumeName)
}

// incomplete is about a volume whose spec.claimRef does not name a claim completely.
func (s *story) incomplete(vol *corev1.PersistentVolume, link *Link) {
	ref, what, is := vol.Spec.ClaimRef, "spec.claimRef.name", "is"
	whom := fmt.Sprintf("a claim %s without a namespace", ref.Name)
	switch {
	case ref.Name != "":
		what = "spec.claimRef.namespace"
	case ref.Namespace == "":
		what, is = "spec.claimRef.namespace and spec.claimRef.name", "are"
		fallthrough
	default:
		whom = "a claim without a name"
	}
	link.Next = fmt.Sprintf("when %s %s set, or spec.claimRef is removed", what, is)
	s.blame("it is reserved for %s, which cannot exist: %s %s missing", whom, what, is)
}
