package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// Commands offered here could take a volume away from a consumer. So each function first checks for
// consumers, and offers nothing if it cannot see them.

// byNobody says when a volume with policy Delete but no provisioner is deleted.
const byNobody = "when an administrator removes the storage by hand, and then the volume: no provisioner made it, so none retries"

// hasMaker says whether a provisioner has created the volume's storage, so that it may also destroy
// it.
func hasMaker(vol *corev1.PersistentVolume) bool {
	_, served := volume.DriverFor(vol.Annotations[volume.AnnProvisionedBy])
	return served
}

// lastFailure copies the last Event with one of the reasons, about a volume that could not be deleted
// or recycled, and says when that is retried. It returns the Event, nil for none.
func (s *story) lastFailure(v *volumeView, link *Link, reasons ...string) *corev1.Event {
	e := newest(v.Events, reasons...)
	if e != nil {
		link.Reason, link.Message, link.Next = e.Reason, e.Message, "when its provisioner retries; "+s.lastTry(e)
	}
	if v.Record == nil && v.Volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && !hasMaker(v.Volume) &&
		(e != nil || v.Volume.Status.Phase == corev1.VolumeFailed) {
		link.Next = byNobody
		s.letGo(v, link)
	}
	return e
}

// releasedVolume says why a volume without its claim still exists.
func (s *story) releasedVolume(v *volumeView, link *Link) {
	if s.claimed(v, link) {
		return
	}
	vol, left := v.Volume, s.leftBy(v)
	recycled := volume.RecycleMethodOf(vol, v.Class) != ""
	who, until := s.lingering(v)
	switch policy := vol.Spec.PersistentVolumeReclaimPolicy; {
	case policy == corev1.PersistentVolumeReclaimDelete:
		s.toBeDeleted(v, left)
	case policy == corev1.PersistentVolumeReclaimRetain && s.trashedVolume(vol, link, left):
	case policy != corev1.PersistentVolumeReclaimRetain || recycled:
		s.blame("%s, and the volume is being recycled", left)
		if volume.DeletionProtected(vol) {
			unprotect(vol, link)
			s.blame("%s, and the volume is not recycled, as its label %s protects it", left, tarnv1.LabelDeletionProtection)
		} else if e := newest(v.Events, "VolumeFailedRecycle"); e != nil {
			link.Reason, link.Message, link.Next = e.Reason, e.Message, "when it is retried; "+s.lastTry(e)
			s.blame("it could not be recycled: %s", e.Message)
		}
	case s.view.unknown(storageClass, "", volume.ClassOfVolume(vol)):
		link.Next = "when an administrator decides, or when it is recycled, if its class has annotation " + tarnv1.AnnotationRecycle
		s.blame("%s, and policy Retain keeps the volume and its data", left)
	case who != "":
		link.Next = until + ", and an administrator decides"
		s.blame("%s, and policy Retain keeps the volume and its data, %s", left, who)
	default:
		s.undecided(v, link, left)
	}
}

// claimed reports a released volume that was given to a claim, or freed, and that no binder has
// reconciled since. It says whether the volume is such a one. A volume created for a claim that has
// another one is not reported, because it will be destroyed.
func (s *story) claimed(v *volumeView, link *Link) bool {
	vol, of := v.Volume, "claim "+refName(v.Volume)
	state := volume.StateOf(vol, v.Claim)
	said, is := map[volume.State]string{
		volume.VolumeUnclaimed: "it no longer names a claim",
		volume.VolumeReserved:  "it is reserved for " + of,
		volume.VolumeAwaited:   "it was given to " + of,
		volume.VolumeMutual:    of + " uses it",
		volume.VolumeStray:     of + " has another volume",
	}[state]
	if !is {
		return false
	}
	link.Next = "when a binder reconciles it"
	s.blame("%s, and no binder has reconciled it since", said)
	if state != volume.VolumeAwaited {
		return true
	}
	if m := volume.Holds(vol, v.Claim); m != volume.Fits { // and the claim's requests cannot be changed before it is bound
		link.Reason = string(m)
		link.Next = "when the claim is created again so that the volume fits; tarn explain " + of + " shows how it then gets the volume"
		if vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			link.Message += "; when the claim is deleted, " + fate(vol)
		}
		s.blame("%s, which it does not fit: %s", said, volume.Explain(m, vol, v.Claim))
	}
	return true
}

// undecided is about a released volume that its policy keeps. It does not offer to free the volume
// for any claim if some claim names it already: one of those gets it by a complete spec.claimRef.
func (s *story) undecided(v *volumeView, link *Link, left string) {
	vol := v.Volume
	link.Next = "when an administrator decides"
	s.blame("%s, and policy Retain keeps the volume and its data until an administrator decides", left)
	var names []string
	for _, claim := range v.Claimants {
		o := Object{Claim, claim.Namespace, claim.Name}
		names = append(names, o.fullName())
		s.add(Link{Object: o, State: string(claim.Status.Phase), Message: fmt.Sprintf("its spec.volumeName is %s; its uid is %s", v.Name, claim.UID)})
	}
	switch {
	case len(names) > 1:
		link.Next += " which claim gets it"
		s.blame("%s; claims %s name it", s.cause, join(names))
	case len(names) == 1:
		s.blame("%s; claim %s names it by spec.volumeName", s.cause, names[0])
		if claim := v.Claimants[0]; link.wouldFit(volume.Named(vol, claim), vol, claim) && s.gone(v) {
			link.Next += ": the command reserves it for that claim alone, with its data, by a complete spec.claimRef: namespace, name and UID"
			link.Command = give(vol, claim)
		}
	case s.gone(v):
		link.Command = give(vol, nil)
		link.Next += ": the command frees it for any claim, with its data; to delete only the PersistentVolume and keep its storage and data: " + kubectl("", "delete", "pv", vol.Name)
		if hasMaker(vol) {
			link.Next = "when an administrator decides: the command frees it for any claim, with its data; to have it destroyed instead: " +
				kubectl("", "patch", "pv", vol.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		}
	}
}

// unprotect reports the label that protects the data of a released volume, with the command that
// removes it.
func unprotect(vol *corev1.PersistentVolume, link *Link) {
	link.Message += "; its label " + tarnv1.LabelDeletionProtection + " keeps its data; the command removes the label, and the data is deleted"
	link.Next = "when the label is gone"
	link.Command = kubectl("", "label", "pv", vol.Name, tarnv1.LabelDeletionProtection+"-")
}

// trashedVolume says how to restore a volume that is in the trash, and until when. It returns false
// for other volumes.
func (s *story) trashedVolume(vol *corev1.PersistentVolume, link *Link, left string) bool {
	until, known, err := volume.TrashedUntil(vol)
	if !known || !volume.Held(vol) {
		return false
	}
	link.Command = "tarn undelete volume " + vol.Name
	if err != nil {
		link.Next = "when an administrator decides: the command restores the claim"
		s.blame("%s, and its data is kept without an end: %v", left, err)
		return true
	}
	link.Next = fmt.Sprintf("at %s, by its own reclaim policy %s; the command restores the claim before that; to end the retention now: tarn trash purge %s --yes",
		until.UTC().Format(time.RFC3339), volume.OwnPolicy(vol), vol.Name)
	s.blame("%s, and its data is kept in the trash until %s", left, until.UTC().Format(time.RFC3339))
	return true
}

// toBeDeleted is about a released volume whose storage should be destroyed, and is not yet.
func (s *story) toBeDeleted(v *volumeView, left string) {
	vol, link, by := v.Volume, s.links[len(s.links)-1], v.Volume.Annotations[volume.AnnProvisionedBy]
	kept := metav1.Condition{}
	if v.Record != nil {
		kept = conditionIn(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
	}
	rid := func(why string) {
		link.Next = "when an administrator removes the storage by hand, and then the volume"
		s.letGo(v, link)
		s.blame("%s, and %s", left, why)
	}
	switch {
	case (v.Record != nil || by == hostPath) && volume.DeletionProtected(vol):
		unprotect(vol, link)
		s.blame("%s, and its storage is not destroyed, as the volume's label %s protects it", left, tarnv1.LabelDeletionProtection)
	case kept.Status == metav1.ConditionFalse && len(v.Stages) == 0:
		link.Reason, link.Message, link.Next = kept.Reason, kept.Message, "when that is no longer true"
		s.blame("%s, and its storage is not destroyed yet: %s", left, kept.Message)
	case newest(v.Events, "VolumeFailedDelete") != nil:
		s.blame("its storage could not be destroyed: %s", s.lastFailure(v, link, "VolumeFailedDelete").Message)
	case v.Record != nil:
		s.controllerSilent(left+", and its storage has to be destroyed", latest(vol, v.Record))
	case vol.Spec.CSI != nil && v.Provisioner != nil && by == "":
		rid("no provisioner made its storage, so none destroys it")
	case vol.Annotations[tarnv1.AnnotationRecord] != "" && !s.view.unknown(pavVolume, "", v.Name):
		rid("its PavVolume is gone, which says how its storage was made, so no provisioner destroys it")
	case by == "":
		link.Next = "when its provisioner or an administrator destroys the storage"
		s.blame("%s, and nothing says which provisioner made its storage and has to destroy it", left)
	default:
		link.Next = "when it is destroyed by " + by
		s.blame("%s, and %s has not destroyed the storage yet", left, by)
	}
}

// refName returns the claim that a volume names, as NAMESPACE/NAME; empty for none.
func refName(vol *corev1.PersistentVolume) string {
	if ref := vol.Spec.ClaimRef; ref != nil {
		return ref.Namespace + "/" + ref.Name
	}
	return ""
}

// leftBy says what became of the claim that a released volume belonged to or was created for.
func (s *story) leftBy(v *volumeView) string {
	ref, name := v.Volume.Spec.ClaimRef, refName(v.Volume)
	switch {
	case ref.Namespace == "":
		return fmt.Sprintf("it names claim %s without a namespace, as spec.claimRef.namespace is missing", ref.Name)
	case v.Claim != nil && v.Claim.UID == ref.UID:
		return fmt.Sprintf("claim %s has another volume", name)
	case v.Claim != nil && ref.UID != "":
		return fmt.Sprintf("it names claim %s by UID %s, and %s", name, ref.UID, another(v.Claim))
	case s.view.unknown(Claim, ref.Namespace, ref.Name):
		return fmt.Sprintf("its phase shows that claim %s is gone", name)
	}
	return fmt.Sprintf("claim %s is gone", name)
}

// another words that a claim is not the one that a volume names, because its uid differs.
func another(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("the claim that has this name now has another UID (%s)", claim.UID)
}

// gone says whether the claim that a volume names by uid no longer exists.
func (s *story) gone(v *volumeView) bool {
	ref := v.claimRef()
	return ref != nil && ref.UID != "" && ref.Namespace != "" && (v.Claim == nil || v.Claim.UID != ref.UID) && !s.view.unknown(Claim, ref.Namespace, ref.Name)
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

// given completes a link with the command that gives a volume with its data to a claim, unless
// something may still use the volume. The user of one namespace may have no right to decide about
// another, so data is not given across namespaces.
func (s *story) given(link *Link, v *volumeView, c *claimView, offer string) {
	switch who, _ := s.lingering(v); {
	case who != "":
		link.Message += "; it holds data, " + who
	case v.Volume.Spec.ClaimRef.Namespace != c.Object.Namespace:
		link.Message += fmt.Sprintf("; its data belongs to namespace %s, and explain does not give it to namespace %s", v.Volume.Spec.ClaimRef.Namespace, c.Object.Namespace)
	default:
		link.Command, link.offer = give(v.Volume, c.Claim), offer
	}
}

// handOver offers to give a released volume with its data to the claim that waits for it. It does
// not offer a volume that will be destroyed or scrubbed, or is in the trash. Nor does it offer one
// that a pod or claim may still use, or that belongs to another namespace.
func (s *story) handOver(link *Link, c *claimView, v *volumeView, class *storagev1.StorageClass) {
	vol := v.Volume
	switch {
	case !kept(vol) || !s.gone(v):
	case volume.RecycleMethodOf(vol, class) != "" || s.view.unknown(storageClass, "", volume.ClassOfVolume(vol)):
	case volume.Held(vol):
		link.Message += "; it is in the trash, and tarn undelete volume " + vol.Name + " gives it back to its former claim"
	case v.Claim != nil && v.Claim.UID != c.Claim.UID && v.Claim.Spec.VolumeName == vol.Name:
		link.Message += fmt.Sprintf("; the existing claim %s/%s names it", v.Claim.Namespace, v.Claim.Name)
	default:
		s.given(link, v, c, "the command gives the volume and its data to this claim alone")
	}
}

// giveBack offers to make a volume name its own claim again, after it was given to a claim that is
// gone. Only pods of the claim itself may still use it.
func (s *story) giveBack(link *Link, c *claimView) {
	v := *c.Volume
	v.Stages = slices.DeleteFunc(slices.Clone(v.Stages), func(g stageView) bool {
		return len(g.Stage.Status.Node.Targets) > 0 && !slices.ContainsFunc(g.Stage.Status.Node.Targets, func(target string) bool {
			return !slices.ContainsFunc(c.Users, func(u user) bool { return isTargetOf(target, u.Pod) })
		})
	})
	s.given(link, &v, c, "the command gives the volume back")
}

// isTargetOf says whether a path on a node is where a pod gets a volume.
func isTargetOf(target string, pod *corev1.Pod) bool {
	return pod.UID != "" && slices.Contains(strings.Split(target, "/"), string(pod.UID))
}

// give returns the command that gives a released volume to one claim, or to any claim for nil. The
// command fails if the volume no longer names its former claim.
func give(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	change := `{"op":"remove","path":"/spec/claimRef"}`
	if claim != nil {
		change = fmt.Sprintf(`{"op":"replace","path":"/spec/claimRef","value":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":%q,"name":%q,"uid":%q}}`,
			claim.Namespace, claim.Name, claim.UID)
	}
	return kubectl("", "patch", "pv", vol.Name, "--type=json", "-p",
		fmt.Sprintf(`[{"op":"test","path":"/spec/claimRef/uid","value":%q},%s]`, vol.Spec.ClaimRef.UID, change))
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
