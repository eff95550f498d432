package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// What is offered here takes something from somebody where it is followed blindly and
// somebody has it: so each looks for that first, and offers nothing where it cannot be seen.

// gone says that the claim which a volume names by its uid is not there any more.
func (s *story) gone(v *volumeView) bool {
	ref := v.claimRef()
	return ref != nil && ref.UID != "" && ref.Namespace != "" && (v.Claim == nil || v.Claim.UID != ref.UID) && !s.view.unknown(Claim, ref.Namespace, ref.Name)
}

// notAcross says why data is not offered to a claim of another namespace: who may decide
// about one need not be who may about the other.
func notAcross(vol *corev1.PersistentVolume, c *claimView) string {
	return fmt.Sprintf("its data belongs to namespace %s, and explain does not give it to namespace %s", vol.Spec.ClaimRef.Namespace, c.Object.Namespace)
}

// handOver offers to give a released volume with its data to the claim that waits for it:
// not one that is to be destroyed or scrubbed, nor out of the trash, nor one that somebody
// has, or may have, nor one of another namespace.
func (s *story) handOver(link *Link, c *claimView, v *volumeView, class *storagev1.StorageClass) {
	vol := v.Volume
	switch who, _ := s.lingering(v); {
	case !kept(vol) || !s.gone(v):
	case volume.RecycleMethodOf(vol, class) != "" || s.view.unknown(storageClass, "", volume.ClassOfVolume(vol)):
	case volume.Held(vol):
		link.Message += "; it is in the trash, and tarn undelete volume " + vol.Name + " gives it back to its former claim"
	case v.Claim != nil && v.Claim.UID != c.Claim.UID && v.Claim.Spec.VolumeName == vol.Name:
		link.Message += fmt.Sprintf("; the existing claim %s/%s names it", v.Claim.Namespace, v.Claim.Name)
	case who != "":
		link.Message += "; it holds data, " + who
	case vol.Spec.ClaimRef.Namespace != c.Object.Namespace:
		link.Message += "; " + notAcross(vol, c)
	default:
		link.Command, link.offer = give(vol, c.Claim), "the command gives the volume and its data to this claim alone"
	}
}

// claimed tells of a released volume that is not without a claim: it was given to one that
// is there, or to any, and no binder has seen that yet. One that was made for a claim that
// has another is to be destroyed, and not told of here.
func (s *story) claimed(v *volumeView, link *Link) bool {
	vol, ref := v.Volume, v.Volume.Spec.ClaimRef
	link.Next = "when a binder reconciles it"
	switch volume.StateOf(vol, v.Claim) {
	case volume.VolumeUnclaimed:
		s.blame("it no longer names a claim, and no binder has reconciled it since")
	case volume.VolumeReserved:
		s.blame("it is reserved for claim %s/%s, and no binder has reconciled it since", ref.Namespace, ref.Name)
	case volume.VolumeAwaited:
		if m := volume.Holds(vol, v.Claim); m != volume.Fits {
			s.tooLittle(v, link, m)
			return true
		}
		s.blame("it was given to claim %s/%s, and no binder has reconciled it since", ref.Namespace, ref.Name)
	case volume.VolumeMutual:
		s.blame("claim %s/%s uses it, and no binder has reconciled it since", ref.Namespace, ref.Name)
	case volume.VolumeStray:
		s.blame("claim %s/%s has another volume, and no binder has reconciled it since", ref.Namespace, ref.Name)
	default:
		link.Next = ""
		return false
	}
	return true
}

// tooLittle is about a released volume that was given to a claim which asks for what it has
// not: no binder binds them, and of what a claim asks for nothing can be changed before.
func (s *story) tooLittle(v *volumeView, link *Link, m volume.Misfit) {
	vol, claim := v.Volume, Object{Claim, v.Claim.Namespace, v.Claim.Name}
	link.Reason, link.Next = string(m), "when the claim is created again so that the volume fits; tarn explain claim "+claim.fullName()+" shows how it then gets the volume"
	if policy := vol.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
		link.Message += "; when the claim is deleted, " + fate(vol)
	}
	s.blame("it was given to %s, which it does not fit: %s", claim, volume.Explain(m, vol, v.Claim))
}

// leftBy says what has become of the claim that a released volume was of, or made for.
func (s *story) leftBy(v *volumeView) string {
	ref := v.Volume.Spec.ClaimRef
	switch {
	case ref.Namespace == "":
		return fmt.Sprintf("it names claim %s without a namespace, as spec.claimRef.namespace is missing", ref.Name)
	case v.Claim != nil && v.Claim.UID == ref.UID:
		return fmt.Sprintf("claim %s/%s has another volume", ref.Namespace, ref.Name)
	case v.Claim != nil && ref.UID != "":
		return fmt.Sprintf("it names claim %s/%s by UID %s, and %s", ref.Namespace, ref.Name, ref.UID, another(v.Claim))
	case s.view.unknown(Claim, ref.Namespace, ref.Name):
		return fmt.Sprintf("its phase shows that claim %s/%s is gone", ref.Namespace, ref.Name)
	}
	return fmt.Sprintf("claim %s/%s is gone", ref.Namespace, ref.Name)
}

// another says of a claim that it is not the one which a volume names by another uid.
func another(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("the claim that has this name now has another UID (%s)", claim.UID)
}

// lingering says who still has a volume without its claim, or that this cannot be told, and
// what has to be waited for. Who has it there would share it with whom it is given next.
func (s *story) lingering(v *volumeView) (who, until string) {
	ref := v.claimRef()
	switch {
	case len(v.Stages) > 0:
		return "which a node still uses", "when no node uses it"
	case len(v.Last) > 0:
		pod := Object{Pod, v.Last[0].Namespace, v.Last[0].Name}
		return fmt.Sprintf("which %s may still use", pod), fmt.Sprintf("when %s is gone", pod)
	case (v.Volume == nil || v.Volume.Spec.CSI != nil) && s.view.unknown(pavStage, "", ""):
		return "and explain cannot tell whether a node still uses it", "when no node uses it, which explain cannot tell"
	case ref != nil && s.view.unknown(Pod, ref.Namespace, ""):
		return "and explain cannot tell whether a pod still uses it", "when no pod uses it, which explain cannot tell"
	}
	return "", ""
}

// giveBack offers to have a volume name the claim again that lost it to one that is gone,
// where nobody has it by that one. Pods of the claim itself may have it.
func (s *story) giveBack(link *Link, c *claimView) {
	v := *c.Volume
	v.Stages = slices.DeleteFunc(slices.Clone(v.Stages), func(g stageView) bool { return c.hasAll(g.Stage) })
	switch who, _ := s.lingering(&v); {
	case who != "":
		link.Message += "; it holds data, " + who
	case v.Volume.Spec.ClaimRef.Namespace != c.Object.Namespace:
		link.Message += "; " + notAcross(v.Volume, c)
	default:
		link.Command, link.offer = give(v.Volume, c.Claim), "the command gives the volume back"
	}
}

// hasAll says that a stage is there for pods of a claim alone.
func (c *claimView) hasAll(stage *tarnv1.PavStage) bool {
	return len(stage.Status.Node.Targets) > 0 && !slices.ContainsFunc(stage.Status.Node.Targets, func(target string) bool {
		return !slices.ContainsFunc(c.Users, func(u user) bool { return isTargetOf(target, u.Pod) })
	})
}

// isTargetOf says that a path on a node is where a pod is given a volume.
func isTargetOf(target string, pod *corev1.Pod) bool {
	return pod.UID != "" && slices.Contains(strings.Split(target, "/"), string(pod.UID))
}

// give gives the command that hands a released volume to one claim, if it still names the
// claim that it was of.
func give(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	return kubectl("", "patch", "pv", vol.Name, "--type=json", "-p", fmt.Sprintf(`[{"op":"test","path":"/spec/claimRef/uid","value":%q},`+
		`{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":%q,"name":%q,"uid":%q}}]`,
		vol.Spec.ClaimRef.UID, claim.Namespace, claim.Name, claim.UID))
}

// free gives the command that makes a released volume available to any claim, if it still
// names the claim that it was of.
func free(vol *corev1.PersistentVolume) string {
	return kubectl("", "patch", "pv", vol.Name, "--type=json", "-p", fmt.Sprintf(`[{"op":"test","path":"/spec/claimRef/uid","value":%q},`+
		`{"op":"remove","path":"/spec/claimRef"}]`, vol.Spec.ClaimRef.UID))
}

// letGo offers to delete a released volume whose storage nobody destroys, where nobody has
// it any more.
func (s *story) letGo(v *volumeView, link *Link) {
	if who, _ := s.lingering(v); who != "" {
		link.Message += "; it holds data, " + who
	} else if s.gone(v) {
		link.Command, link.offer = kubectl("", "delete", "pv", v.Name), "the command deletes only the PersistentVolume: its storage and data stay"
	}
}

// nearestFor tells which volume came nearest to a claim whose pod waits for the scheduler,
// where a class makes none, and what to do about it where that is what the scheduler lacks.
func (s *story) nearestFor(c *claimView, t trouble) {
	if c.Class.Provisioner != noProvisioner {
		return
	}
	s.nearest(c, "")
	if !strings.Contains(t.Message, "persistent volume") {
		s.links[len(s.links)-1].Command = ""
	}
}

// anew offers to make a claim anew that has no data yet. While a pod that has a node names
// it, it would be deleted and not come back.
func (s *story) anew(c *claimView, link *Link, kind, patch, how string) {
	if s.view.unknown(Pod, c.Object.Namespace, "") {
		return
	}
	if using := c.using(); len(using) > 0 {
		link.Message = strings.TrimPrefix(fmt.Sprintf("%s; pod %s uses it and has a node: until that pod is gone, the claim cannot be created again %s", link.Message, using[0].Pod.Name, how), "; ")
		return
	}
	link.Command, link.offer = replacing(c.Object, "pvc", kind, patch), "the command creates the claim again "+how+"; it holds no data yet"
}

// giveUp offers to delete a claim that has no volume any more, unless a pod names it: a pod
// that runs may still have what was on it.
func (s *story) giveUp(c *claimView, link *Link) {
	if len(c.Users) > 0 || s.view.unknown(Pod, c.Object.Namespace, "") {
		return
	}
	link.Command, link.offer = kubectl(c.Object.Namespace, "delete", "pvc", c.Object.Name), "the command deletes the claim instead, which frees its name"
}
