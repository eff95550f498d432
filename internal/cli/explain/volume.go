package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// phaseSince returns when a volume entered its phase, nil if that is not recorded.
func phaseSince(vol *corev1.PersistentVolume) *time.Time {
	if t := vol.Status.LastPhaseTransitionTime; t != nil {
		return moment(t.Time)
	}
	return nil
}

// ofVolume finds the state of a volume, and returns it in a word.
func (s *story) ofVolume(v *volumeView) string {
	vol := v.Volume
	if vol == nil {
		return s.onlyRecord(v)
	}
	at := len(s.links)
	size := volume.Capacity(vol)
	link := s.add(Link{Object: Object{Volume, "", v.Name}, State: string(vol.Status.Phase), Since: phaseSince(vol),
		Message: fmt.Sprintf("%s, %s, %s, policy %s", size, volume.AccessOf(vol.Spec.AccessModes), path(v), vol.Spec.PersistentVolumeReclaimPolicy)})
	if vol.Status.Message != "" {
		link.Reason, link.Message = vol.Status.Reason, link.Message+"; "+vol.Status.Message
	}
	if vol.DeletionTimestamp != nil {
		link.State, link.Since = "Terminating", moment(vol.DeletionTimestamp.Time)
	}
	// Tarn's binder does not set the phase of a new volume that is reserved for a claim to come for a
	// second, or for up to a minute under heavy load.
	mayCome := v.Claim == nil && vol.Status.Phase == corev1.VolumePending && volume.StateOf(vol, nil) == volume.VolumeReserved &&
		s.view.Now.Sub(vol.CreationTimestamp.Time) < time.Minute+answerTime
	switch {
	case v.Record != nil && (v.Record.Status.Phase == tarnv1.VolumeDeleting || v.Record.Status.Phase == tarnv1.VolumeUndoing):
		s.destroying(v)
	case vol.DeletionTimestamp != nil:
		s.endingVolume(v)
		if v.Record != nil {
			s.record(v, tarnv1.ConditionDeletable)
		}
	case s.inVain(v, link):
	case vol.Status.Phase == corev1.VolumeAvailable, mayCome:
		s.fine = "free for any claim that it fits, " + path(v)
		if vol.Spec.ClaimRef != nil {
			s.fine = fmt.Sprintf("reserved for claim %s, %s", refName(vol), path(v))
		}
	case vol.Status.Phase == corev1.VolumeBound:
		s.boundVolume(v)
	case vol.Status.Phase == corev1.VolumeReleased:
		s.releasedVolume(v, link)
	case vol.Status.Phase == corev1.VolumeFailed:
		s.blame("%s", cmp.Or(vol.Status.Message, "the action after the release of its claim failed"))
		s.lastFailure(v, link, "VolumeFailedDelete", "VolumeFailedRecycle", "VolumeUnknownReclaimPolicy")
	default:
		link.Next = "when a binder reconciles it"
		s.blame("no binder has reconciled it yet")
	}
	return s.links[at].State
}

// onlyRecord is about a record without a volume.
func (s *story) onlyRecord(v *volumeView) string {
	r := v.Record
	switch phase := r.Status.Phase; {
	case phase == tarnv1.VolumeDeleting:
		s.destroying(v)
	case phase == tarnv1.VolumeCreated && meta.IsStatusConditionTrue(r.Status.Conditions, tarnv1.ConditionProvisioned) && !s.view.unseen(Object{Volume, "", v.Name}):
		link, _ := s.record(v, tarnv1.ConditionDeletable)
		link.Next = "when an administrator decides; tarn explain claim " + r.Spec.Claim.Namespace + "/" + r.Spec.Claim.Name + " says how a claim gets it back"
		s.blame("it was removed by force, and its storage still exists")
		switch who, until := s.lingering(v); {
		case len(v.Named) > 0:
			link.Next = fmt.Sprintf("when %s no longer names it, and %s", v.Named[0], strings.TrimPrefix(link.Next, "when "))
			s.blame("%s, which %s names", s.cause, v.Named[0])
		case !s.gone(v), s.view.unseen(Object{Kind: Volume}):
		case who != "":
			link.Next = until + ", and " + strings.TrimPrefix(link.Next, "when ")
			s.blame("%s, %s", s.cause, who)
		default:
			link.Command, link.offer = kubectl("", "delete", "pavvolume", r.Name), "the command destroys the storage"
		}
		return "missing"
	default:
		s.beingMade(v, v.Claim)
	}
	return cmp.Or(string(r.Status.Phase), "new")
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
	const changed, byBinder = "spec.claimRef of the volume is changed", "when a binder reconciles it"
	switch {
	case ref.Namespace == "" || ref.Name == "":
		link.Next = "when spec.claimRef has a namespace and a name, or is removed"
		s.blame("it is reserved for a claim that cannot exist: its spec.claimRef has namespace %q and name %q", ref.Namespace, ref.Name)
	case claim == nil && v.NoNamespace:
		link.Next = "when namespace " + ref.Namespace + " is created, and the claim in it, or " + changed
		s.blame("it is reserved for %s, and there is no namespace %s", o, ref.Namespace)
	case claim == nil:
		return false
	case ref.UID != "" && ref.UID != claim.UID:
		link.Next = byBinder + "; the volume is then Released"
		s.blame("it is reserved for %s by UID %s, and %s", o, ref.UID, another(claim))
	case claim.Spec.VolumeName == vol.Name: // they name each other, which is all that the binder checks
		return false
	case claim.Spec.VolumeName != "":
		has := "names"
		link.Next = "when the claim is created again without spec.volumeName, or " + changed
		if volume.WasBound(claim) { // its data is on that other volume
			has, link.Next = "has", "when "+changed+": the claim keeps the volume that it has"
		}
		if ref.UID != "" {
			link.Next = byBinder
		}
		s.add(Link{Object: o, State: string(claim.Status.Phase), Message: fmt.Sprintf("it %s volume %s", has, claim.Spec.VolumeName)})
		s.blame("it is reserved for %s, which %s another volume, %s", o, has, claim.Spec.VolumeName)
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

// boundVolume is about a volume that is bound to a claim.
func (s *story) boundVolume(v *volumeView) {
	unseen, ref := s.unseenByBinder(v), v.Volume.Spec.ClaimRef
	if ref == nil {
		return
	}
	s.fine = fmt.Sprintf("claim %s uses it, %s", refName(v.Volume), path(v))
	if !unseen && v.Claim != nil {
		link := s.add(Link{Object: Object{Claim, ref.Namespace, ref.Name}, State: string(v.Claim.Status.Phase)})
		if v.Claim.DeletionTimestamp != nil {
			link.State, link.Since = "Terminating", moment(v.Claim.DeletionTimestamp.Time)
		}
	}
	s.weigh(s.stages(v, v.Users)...)
}

// unseenByBinder reports a volume in phase Bound whose claim is gone, which only a binder corrects.
// It returns false and reports nothing if the claim exists or could not be read.
func (s *story) unseenByBinder(v *volumeView) bool {
	ref := v.Volume.Spec.ClaimRef
	switch {
	case ref == nil:
		s.blame("it names no claim; a binder corrects that")
		return true
	case v.Claim != nil && v.Claim.UID == ref.UID, s.view.unknown(Claim, ref.Namespace, ref.Name):
		return false
	}
	link := s.add(Link{Object: Object{Claim, ref.Namespace, ref.Name}, State: "missing", Next: "when a binder reconciles it; the volume is then Released"})
	left := fmt.Sprintf("its claim %s is gone", refName(v.Volume))
	if v.Claim != nil && ref.UID != "" {
		link.State, link.Message, left = string(v.Claim.Status.Phase), "its uid is "+string(v.Claim.UID), s.leftBy(v)
	}
	s.blame("%s, and no binder has reconciled it since", left)
	return true
}

// destroying is about a volume whose storage Tarn destroys.
func (s *story) destroying(v *volumeView) {
	link, c := s.record(v, tarnv1.ConditionDeletable)
	r, blocked := v.Record, c.Status == metav1.ConditionFalse
	switch {
	case blocked && (len(v.Stages) > 0 || c.Reason == stillStaged && s.view.unknown(pavStage, "", "")):
		link.Next = "when it is unstaged"
		s.blame("its storage cannot be destroyed yet: %s", c.Message)
		var parts []*story
		for i := range v.Stages {
			part := s.part(v.Stages[i].Stage.Spec.NodeName + "/" + v.Stages[i].Stage.Name)
			part.endingStage(&v.Stages[i])
			parts = append(parts, part)
		}
		s.weigh(parts...)
	case v.Provisioner == nil && !s.view.unknown(pavProvisioner, "", r.Spec.Provisioner.Name):
		link.Next = "when you have removed the storage by hand and deleted the record, as the command does"
		link.Command = kubectl("", "delete", "pavvolume", r.Name)
		s.blame("PavProvisioner %s, which made it, is gone, and only it could remove the storage", r.Spec.Provisioner.Name)
	case blocked && c.Reason == steppod.ReasonHandleTaken:
		link.Next = "when the other volume is gone, or when you keep this one, as the command does"
		link.Command = kubectl("", "patch", "pv", v.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
		s.blame("%s", c.Message)
	case blocked && c.Reason == steppod.ReasonNodeGone:
		link.Next = "when the node is back; if it will not come back, when you delete the record, as the command does"
		link.Command = kubectl("", "delete", "pavvolume", r.Name)
		s.blame("node %q, which holds its storage, is gone", r.Status.NodeName)
	default:
		s.undoing(v)
	}
}

// endingVolume finds what keeps a volume that is being deleted.
func (s *story) endingVolume(v *volumeView) {
	vol, ref, o := v.Volume, v.Volume.Spec.ClaimRef, Object{Volume, "", v.Name}
	hidden := ref != nil && s.view.unknown(Claim, ref.Namespace, ref.Name)
	protected := slices.Contains(vol.Finalizers, volumeProtection)
	bound := vol.Status.Phase == corev1.VolumeBound
	switch {
	case v.hasClaim() && protected:
		s.heldByClaim(v)
	case v.hasClaim(): // finalizers keep it, but none of them waits for the claim
		if s.keepers(o, "pv", vol, "", false); s.cause != "" {
			s.cause += fmt.Sprintf("; claim %s uses it%s", refName(vol), v.usedBy())
			s.links[len(s.links)-1].Message += "; the volume is deleted with the last of its finalizers, and its claim is then Lost"
			if s.view.Asked.Kind == Volume {
				link := s.add(Link{Object: Object{Claim, ref.Namespace, ref.Name}, State: string(v.Claim.Status.Phase), Message: "it is bound to the volume, and nothing keeps the volume until the claim is gone",
					Next: "when the claim is gone, and then the finalizer's owner removes the finalizer"})
				s.endOfClaim(v, link)
			}
		}
		return
	case protected && !bound && !hidden:
		since := vol.DeletionTimestamp.Time
		if t := vol.Status.LastPhaseTransitionTime; t != nil && t.After(since) { // it was Bound until then
			since = t.Time
		}
		s.protectionSilent(o, since, ref == nil || vol.Status.Phase != corev1.VolumeAvailable, "no claim is bound to it")
	case protected && bound && s.unseenByBinder(v): // then the protection controller waits for a binder
	case protected:
		s.keepers(o, "pv", vol, "", false)
		return
	}
	// It may wait until its provisioner has destroyed its storage.
	theirs := vol.Annotations[volume.AnnProvisionedBy] != "" && vol.Annotations[tarnv1.AnnotationRecord] == "" && slices.Contains(vol.Finalizers, volume.FinalizerExternal)
	if !protected && ref != nil && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		(vol.Status.Phase == corev1.VolumeReleased || vol.Status.Phase == corev1.VolumeFailed) && (v.Record != nil || theirs) {
		s.toBeDeleted(v, s.leftBy(v))
	}
	lingers, _ := s.lingering(v)
	s.keepers(o, "pv", vol, volumeProtection, !hidden && lingers == "")
}

// hasClaim says whether the claim that a volume names exists and has no other volume.
func (v *volumeView) hasClaim() bool {
	ref := v.Volume.Spec.ClaimRef
	return ref != nil && v.Claim != nil && v.Claim.UID == ref.UID && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.Volume.Name)
}

// heldByClaim says that a volume being deleted waits for its claim.
func (s *story) heldByClaim(v *volumeView) {
	name := refName(v.Volume)
	link := s.add(Link{Object: Object{Claim, v.Claim.Namespace, v.Claim.Name}, State: string(v.Claim.Status.Phase),
		Message: "it is bound to the volume, which " + volumeProtection + " keeps until then", Next: "when the claim is gone; the volume can be used until then"})
	if v.Claim.Spec.VolumeName == "" { // no binder binds a claim to a volume that is being deleted
		link.Message = "it was to get the volume, which " + volumeProtection + " keeps until then; it no longer gets it, as the volume is being deleted"
		link.Next = "when the claim is gone; if it is created again, it gets another volume"
		s.blame("claim %s was to get it and no longer can", name)
	} else {
		s.blame("claim %s uses it%s", name, v.usedBy())
	}
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
