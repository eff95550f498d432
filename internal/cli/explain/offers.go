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

// The commands offered here could take a volume away from a consumer. So each function first checks
// for consumers, and offers nothing if it cannot see them.

// gone says whether the claim that a volume names by uid no longer exists.
func (s *story) gone(v *volumeView) bool {
	ref := v.claimRef()
	return ref != nil && ref.UID != "" && ref.Namespace != "" && (v.Claim == nil || v.Claim.UID != ref.UID) && !s.view.unknown(Claim, ref.Namespace, ref.Name)
}

// notAcross says why data is not offered to a claim of another namespace. The user of one namespace
// may have no right to decide about another.
func notAcross(vol *corev1.PersistentVolume, c *claimView) string {
	return fmt.Sprintf("its data belongs to namespace %s, and explain does not give it to namespace %s", vol.Spec.ClaimRef.Namespace, c.Object.Namespace)
}

// handOver offers to give a released volume with its data to the claim that waits for it. It does
// not offer a volume that will be destroyed or scrubbed, or is in the trash. Nor does it offer one
// that a pod or claim may still use, or that belongs to another namespace.
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

// claimed reports a released volume that was given to a claim, or freed, and that no binder has
// reconciled since. It says whether the volume is such a one. A volume created for a claim that has
// another one is not reported, because it will be destroyed.
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

// tooLittle is about a released volume that was given to a claim which it does not fit. No binder
// binds them, and the claim's requests cannot be changed before it is bound.
func (s *story) tooLittle(v *volumeView, link *Link, m volume.Misfit) {
	vol, claim := v.Volume, Object{Claim, v.Claim.Namespace, v.Claim.Name}
	link.Reason, link.Next = string(m), "when the claim is created again so that the volume fits; tarn explain claim "+claim.fullName()+" shows how it then gets the volume"
	if policy := vol.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
		link.Message += "; when the claim is deleted, " + fate(vol)
	}
	s.blame("it was given to %s, which it does not fit: %s", claim, volume.Explain(m, vol, v.Claim))
}

// leftBy says what became of the claim that a released volume belonged to or was created for.
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

// another words that a claim is not the one that a volume names, because its uid differs.
func another(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("the claim that has this name now has another UID (%s)", claim.UID)
}

// lingering says what still uses a volume without its claim, or that this cannot be known. until
// says what to wait for. Any remaining consumer would share the volume with the next one.
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

// giveBack offers to make a volume name its own claim again, after it was given to a claim that is
// gone. Only pods of the claim itself may still use it.
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

// hasAll says whether only pods of this claim use a stage.
func (c *claimView) hasAll(stage *tarnv1.PavStage) bool {
	return len(stage.Status.Node.Targets) > 0 && !slices.ContainsFunc(stage.Status.Node.Targets, func(target string) bool {
		return !slices.ContainsFunc(c.Users, func(u user) bool { return isTargetOf(target, u.Pod) })
	})
}

// isTargetOf says whether a path on a node is where a pod gets a volume.
func isTargetOf(target string, pod *corev1.Pod) bool {
	return pod.UID != "" && slices.Contains(strings.Split(target, "/"), string(pod.UID))
}

// give returns the command that gives a released volume to one claim. The command fails if the
// volume no longer names its former claim.
func give(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	return kubectl("", "patch", "pv", vol.Name, "--type=json", "-p", fmt.Sprintf(`[{"op":"test","path":"/spec/claimRef/uid","value":%q},`+
		`{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":%q,"name":%q,"uid":%q}}]`,
		vol.Spec.ClaimRef.UID, claim.Namespace, claim.Name, claim.UID))
}

// free returns the command that makes a released volume available to any claim. The command fails
// if the volume no longer names its former claim.
func free(vol *corev1.PersistentVolume) string {
	return kubectl("", "patch", "pv", vol.Name, "--type=json", "-p", fmt.Sprintf(`[{"op":"test","path":"/spec/claimRef/uid","value":%q},`+
		`{"op":"remove","path":"/spec/claimRef"}]`, vol.Spec.ClaimRef.UID))
}

// letGo offers to delete a released volume whose storage no provisioner destroys, if nothing uses
// the volume any more.
func (s *story) letGo(v *volumeView, link *Link) {
	if who, _ := s.lingering(v); who != "" {
		link.Message += "; it holds data, " + who
	} else if s.gone(v) {
		link.Command, link.offer = kubectl("", "delete", "pv", v.Name), "the command deletes only the PersistentVolume: its storage and data stay"
	}
}

// nearestFor reports the volume that came nearest to a claim whose pod waits for the scheduler, if
// no provisioner creates its volumes. It offers a command only if the scheduler lacks a volume.
func (s *story) nearestFor(c *claimView, t trouble) {
	if c.Class.Provisioner != noProvisioner {
		return
	}
	s.nearest(c, "")
	if !strings.Contains(t.Message, "persistent volume") {
		s.links[len(s.links)-1].Command = ""
	}
}

// anew offers to create a claim again that holds no data yet. It does not while a pod with a node
// uses the claim: the claim would be deleted, but could not be created again.
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

// giveUp offers to delete a claim that has lost its volume, unless a pod names it. A running pod
// may still have the data.
func (s *story) giveUp(c *claimView, link *Link) {
	if len(c.Users) > 0 || s.view.unknown(Pod, c.Object.Namespace, "") {
		return
	}
	link.Command, link.offer = kubectl(c.Object.Namespace, "delete", "pvc", c.Object.Name), "the command deletes the claim instead, which frees its name"
}
