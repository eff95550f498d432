package explain

import (
	"cmp"
	"fmt"
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
	destroying := v.Record != nil && (v.Record.Status.Phase == tarnv1.VolumeDeleting || v.Record.Status.Phase == tarnv1.VolumeUndoing)
	switch {
	case destroying:
		s.destroying(v)
	case vol.DeletionTimestamp != nil:
		s.endingVolume(v)
		if v.Record != nil {
			s.record(v, tarnv1.ConditionDeletable)
		}
	case s.inVain(v, link):
	case vol.Status.Phase == corev1.VolumeAvailable, s.claimMayCome(v):
		s.fine = "free for any claim that it fits, " + path(v)
		if ref := vol.Spec.ClaimRef; ref != nil {
			s.fine = fmt.Sprintf("reserved for claim %s/%s, %s", ref.Namespace, ref.Name, path(v))
		}
	case vol.Status.Phase == corev1.VolumeBound:
		s.boundVolume(v)
	case vol.Status.Phase == corev1.VolumeReleased:
		s.releasedVolume(v, link)
	case vol.Status.Phase == corev1.VolumeFailed:
		s.failedVolume(v, link)
	default:
		link.Next = "when a binder reconciles it"
		s.blame("no binder has reconciled it yet")
	}
	return s.links[at].State
}

// claimMayCome says whether a volume is new and reserved for a claim that does not exist yet.
// Tarn's binder does not set the phase of such a volume for a second, or for up to a minute under
// heavy load. The claim could be bound to it all the same.
func (s *story) claimMayCome(v *volumeView) bool {
	return v.Claim == nil && v.Volume.Status.Phase == corev1.VolumePending && volume.StateOf(v.Volume, nil) == volume.VolumeReserved &&
		s.view.Now.Sub(v.Volume.CreationTimestamp.Time) < time.Minute+answerTime
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

// boundVolume is about a volume that is bound to a claim.
func (s *story) boundVolume(v *volumeView) {
	unseen, ref := s.unseenByBinder(v), v.Volume.Spec.ClaimRef
	if ref == nil {
		return
	}
	o := Object{Claim, ref.Namespace, ref.Name}
	s.fine = fmt.Sprintf("%s uses it, %s", o, path(v))
	if !unseen && v.Claim != nil {
		link := s.add(Link{Object: o, State: string(v.Claim.Status.Phase)})
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
	case v.Claim != nil && v.Claim.UID == ref.UID, s.view.unknown(Claim, ref.Namespace, ref.Name):
		return false
	case v.Claim != nil && ref.UID != "":
		s.add(Link{Object: Object{Claim, ref.Namespace, ref.Name}, State: string(v.Claim.Status.Phase), Message: "its uid is " + string(v.Claim.UID), Next: "when a binder reconciles it; the volume is then Released"})
		s.blame("%s, and no binder has reconciled it since", s.leftBy(v))
	default:
		s.add(Link{Object: Object{Claim, ref.Namespace, ref.Name}, State: "missing", Next: "when a binder reconciles it; the volume is then Released"})
		s.blame("its claim %s/%s is gone, and no binder has reconciled it since", ref.Namespace, ref.Name)
	}
	return true
}

// releasedVolume says why a volume without its claim still exists.
func (s *story) releasedVolume(v *volumeView, link *Link) {
	vol := v.Volume
	if s.claimed(v, link) {
		return
	}
	left := s.leftBy(v)
	policy, recycled := vol.Spec.PersistentVolumeReclaimPolicy, volume.RecycleMethodOf(vol, v.Class) != ""
	who, until := s.lingering(v)
	switch {
	case policy == corev1.PersistentVolumeReclaimRetain && s.trashedVolume(vol, link, left):
	case policy == corev1.PersistentVolumeReclaimRetain && s.view.unknown(storageClass, "", volume.ClassOfVolume(vol)) && !recycled:
		link.Next = "when an administrator decides, or when it is recycled, if its class has annotation " + tarnv1.AnnotationRecycle
		s.blame("%s, and policy Retain keeps the volume and its data", left)
	case policy == corev1.PersistentVolumeReclaimRetain && !recycled && who != "":
		link.Next = until + ", and an administrator decides"
		s.blame("%s, and policy Retain keeps the volume and its data, %s", left, who)
	case policy == corev1.PersistentVolumeReclaimRetain && !recycled:
		s.undecided(v, link, left)
	case policy == corev1.PersistentVolumeReclaimDelete:
		s.toBeDeleted(v, left)
	default:
		s.blame("%s, and the volume is being recycled", left)
		if volume.DeletionProtected(vol) {
			unprotect(vol, link)
			s.blame("%s, and the volume is not recycled, as its label %s protects it", left, tarnv1.LabelDeletionProtection)
		} else if e := newest(v.Events, "VolumeFailedRecycle"); e != nil {
			link.Reason, link.Message, link.Next = e.Reason, e.Message, "when it is retried; "+s.lastTry(e)
			s.blame("it could not be recycled: %s", e.Message)
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
	link := s.links[len(s.links)-1]
	ours := v.Record != nil || v.Volume.Annotations[volume.AnnProvisionedBy] == hostPath
	switch e := newest(v.Events, "VolumeFailedDelete"); {
	case ours && volume.DeletionProtected(v.Volume):
		unprotect(v.Volume, link)
		s.blame("%s, and its storage is not destroyed, as the volume's label %s protects it", left, tarnv1.LabelDeletionProtection)
	case v.Record != nil && meta.IsStatusConditionFalse(v.Record.Status.Conditions, tarnv1.ConditionDeletable) && len(v.Stages) == 0:
		kept := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
		link.Reason, link.Message, link.Next = kept.Reason, kept.Message, "when that is no longer true"
		s.blame("%s, and its storage is not destroyed yet: %s", left, kept.Message)
	case e != nil && v.Record == nil && !hasMaker(v.Volume):
		link.Reason, link.Message, link.Next = e.Reason, e.Message, byNobody
		s.letGo(v, link)
		s.blame("its storage could not be destroyed: %s", e.Message)
	case e != nil:
		link.Reason, link.Message, link.Next = e.Reason, e.Message, "when its provisioner retries; "+s.lastTry(e)
		s.blame("its storage could not be destroyed: %s", e.Message)
	case v.Record != nil:
		s.controllerSilent(left+", and its storage has to be destroyed", latest(v.Volume, v.Record))
	case v.Volume.Spec.CSI != nil && v.Provisioner != nil && v.Volume.Annotations[volume.AnnProvisionedBy] == "":
		link.Next = "when an administrator removes the storage by hand, and then the volume"
		s.letGo(v, link)
		s.blame("%s, and no provisioner made its storage, so none destroys it", left)
	case v.Volume.Annotations[tarnv1.AnnotationRecord] != "" && !s.view.unknown(pavVolume, "", v.Name):
		link.Next = "when an administrator removes the storage by hand, and then the volume"
		s.letGo(v, link)
		s.blame("%s, and its PavVolume is gone, which says how its storage was made, so no provisioner destroys it", left)
	case v.Volume.Annotations[volume.AnnProvisionedBy] == "":
		link.Next = "when its provisioner or an administrator destroys the storage"
		s.blame("%s, and nothing says which provisioner made its storage and has to destroy it", left)
	default:
		who := v.Volume.Annotations[volume.AnnProvisionedBy]
		link.Next = "when it is destroyed by " + who
		s.blame("%s, and %s has not destroyed the storage yet", left, who)
	}
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
