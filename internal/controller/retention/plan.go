package retention

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// Events of the trash, on a PersistentVolume.
const (
	// eventTrashed: the claim was deleted and the volume is in the trash. To get the data back,
	// use tarn undelete before the time in the message.
	eventTrashed = "Trashed"
	// eventOver: the retention is over. The volume gets its own reclaim policy again.
	eventOver = "RetentionOver"
	// eventInvalid: a retention is not a valid duration, and the volume is kept. Correct the
	// annotation that the message names.
	eventInvalid = "InvalidRetention"
	// eventProtected: the retention is over, but a label protects the volume from deletion. Remove
	// the label to delete the volume.
	eventProtected = "DeletionProtected"
	// eventInUse: the retention is over, but the volume is still in use. It stays until its user
	// is gone.
	eventInUse = "VolumeStillInUse"
	// eventLeft: the PersistentVolume was deleted while it was kept, so its storage stays. Remove
	// the storage by hand if you do not need it.
	eventLeft = "StorageLeftBehind"
)

// Plan is what to do about one volume; the zero value does nothing.
type Plan struct {
	// Write is the volume as it should be; nil if it stays as it is.
	Write *corev1.PersistentVolume
	// Grave means that the write may lead to the loss of data, so apply must first read from
	// the API server.
	Grave bool
	// Event is emitted after the write, unless its reason is empty.
	Event Event
	// Next is when to reconcile even if no event arrives; zero means never.
	Next time.Time
}

// Event is an event about a volume.
type Event struct{ Type, Reason, Note string }

// state is where a volume stands between its claim and the trash. The set is closed.
type state string

const (
	// foreign: being deleted, or being added to a pool or removed from one.
	foreign state = "Foreign"
	// cleared: without claimRef, but not yet Available. Drivers destroy a volume by phase
	// Released and policy Delete, and ignore claimRef.
	cleared state = "Cleared"
	// free: without claimRef and Available.
	free state = "Free"
	// reserved: claimRef names a claim that does not exist yet.
	reserved state = "Reserved"
	// offered: made for a claim that has not bound it. If the claim binds another volume, the
	// binder lets this one be destroyed by its policy, so the policy must not change.
	offered state = "Offered"
	// claimed: bound to a claim.
	claimed state = "Claimed"
	// released: its claim is gone, and the end of its retention is not recorded yet.
	released state = "Released"
	// trashed: kept until the recorded time.
	trashed state = "Trashed"
	// over: the retention has ended, and its own policy is in force again.
	over state = "Over"
	// failed: could not be deleted or recycled.
	failed state = "Failed"
)

func stateOf(v *View) state {
	vol := v.Volume
	ref := vol.Spec.ClaimRef
	switch {
	case vol.DeletionTimestamp != nil, volume.Passing(vol, v.Namespace):
		return foreign
	case ref == nil && vol.Status.Phase != corev1.VolumeAvailable:
		return cleared
	case ref == nil:
		return free
	case ref.UID == "":
		return reserved
	case vol.Status.Phase == corev1.VolumeFailed:
		return failed
	case vol.Status.Phase == corev1.VolumeBound, v.Claim != nil && v.Claim.Spec.VolumeName == vol.Name:
		return claimed
	case vol.Status.Phase != corev1.VolumeReleased:
		return offered
	}
	_, noted, _ := volume.TrashedUntil(vol)
	switch {
	case !noted:
		return released
	case !volume.Held(vol) || vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return over
	}
	return trashed
}

// plan decides what to do with the volume of the View.
func plan(v *View, now time.Time) Plan {
	if v.Volume == nil || !marked(v.Volume) && !retentionOf(v).Wanted() { // most volumes: each is reconciled several times in its life
		return Plan{}
	}
	want := v.Volume.DeepCopy()
	want.ManagedFields = v.Volume.ManagedFields // long and never changed here: sharing it makes the comparison one step
	switch stateOf(v) {
	case free: // claimRef was cleared: what the volume remembers belongs to no claim
		volume.LetGo(want)
		forget(want)
		return write(v, want, Plan{})
	case claimed:
		return planClaimed(v, want)
	case released:
		return planReleased(v, want, now)
	case trashed:
		return planTrashed(v, want, now)
	case over: // a policy set by hand gets no event: it was changed on purpose
		delete(want.Labels, tarnv1.LabelTrashedUntil)
		return write(v, want, Plan{})
	case foreign:
		return planForeign(want)
	}
	return Plan{}
}

// planForeign warns about a volume that is deleted during its retention. Its storage stays, as
// with policy Retain: one mistaken deletion must not destroy data that was to be kept.
func planForeign(vol *corev1.PersistentVolume) Plan {
	if vol.DeletionTimestamp == nil || !volume.Held(vol) || vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		return Plan{}
	}
	return Plan{Event: Event{corev1.EventTypeWarning, eventLeft, fmt.Sprintf(
		"the volume is being deleted during its retention; its storage is kept, and nothing deletes it later; to delete it with the volume: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"%s\"}}'",
		vol.Name, volume.OwnPolicy(vol))}}
}

// planClaimed sets policy Retain while the volume has a claim, and remembers the claim.
func planClaimed(v *View, want *corev1.PersistentVolume) Plan {
	r := retentionOf(v)
	volume.Untrash(want)
	switch {
	case r.Wrong != "":
		volume.Hold(want, v.Volume.Annotations[tarnv1.AnnotationHeldFor])
	case r.Wanted():
		volume.Hold(want, r.Text)
	case r.Unknown && volume.Held(want): // the class is gone; its last retention stays in force
		volume.Hold(want, v.Volume.Annotations[tarnv1.AnnotationHeldFor])
	default:
		volume.LetGo(want)
		forget(want)
		return write(v, want, Plan{})
	}
	if v.Claim != nil {
		if text, err := volume.RememberClaim(v.Claim); err == nil {
			metav1.SetMetaDataAnnotation(&want.ObjectMeta, tarnv1.AnnotationClaim, text)
		}
	}
	return write(v, want, Plan{Event: complaint(r)})
}

// planReleased records the end of the retention of a released volume, counted from its release.
// A volume released before it was held is held now, if it has a retention. That is in time,
// because deletion and recycling check the policy right before they act.
func planReleased(v *View, want *corev1.PersistentVolume, now time.Time) Plan {
	r := retentionOf(v)
	if !volume.Held(want) && !r.Wanted() {
		return Plan{}
	}
	keep, text := r.Time, r.Text
	if r.Wrong != "" || r.Unknown {
		text = v.Volume.Annotations[tarnv1.AnnotationHeldFor]
		d, err := volume.ParseRetention(text)
		if err != nil { // no valid retention was ever recorded: the volume is kept until the user corrects it
			volume.Hold(want, text)
			return write(v, want, Plan{Event: complaint(r)})
		}
		keep = d
	}
	since := now
	if at := v.Volume.Status.LastPhaseTransitionTime; at != nil {
		since = at.Time
	}
	until := since.Add(keep)
	volume.Hold(want, text)
	volume.Trash(want, until)
	return write(v, want, Plan{Next: until, Event: Event{corev1.EventTypeNormal, eventTrashed, fmt.Sprintf(
		"claim %s/%s is gone; its data is kept until %s; to restore it: tarn undelete volume %s",
		want.Spec.ClaimRef.Namespace, want.Spec.ClaimRef.Name, until.UTC().Format(time.RFC3339), want.Name)}})
}

// planTrashed waits for the end of the retention, then restores the volume's own policy. A
// volume with the label for deletion protection stays, because its driver does not check that
// label.
func planTrashed(v *View, want *corev1.PersistentVolume, now time.Time) Plan {
	until, _, err := volume.TrashedUntil(want)
	if err != nil {
		return Plan{Event: Event{corev1.EventTypeWarning, eventInvalid, err.Error() + "; until then the volume is kept"}}
	}
	volume.ShowTrashed(want, until)
	if now.Before(until) {
		return write(v, want, Plan{Next: until})
	}
	own := volume.OwnPolicy(want)
	if own != corev1.PersistentVolumeReclaimRetain && volume.DeletionProtected(want) {
		return write(v, want, Plan{Event: Event{corev1.EventTypeWarning, eventProtected, fmt.Sprintf(
			"the retention is over, but label %s protects the volume; to lift that: kubectl label persistentvolumes %s %s-",
			tarnv1.LabelDeletionProtection, want.Name, tarnv1.LabelDeletionProtection)}})
	}
	volume.LetGo(want)
	return write(v, want, Plan{Grave: own != corev1.PersistentVolumeReclaimRetain, Event: Event{corev1.EventTypeNormal, eventOver,
		fmt.Sprintf("the retention is over; the reclaim policy is %s", own)}})
}

// marked reports whether a volume has an annotation or label of the trash.
func marked(vol *corev1.PersistentVolume) bool {
	for _, key := range []string{tarnv1.AnnotationReclaimPolicy, tarnv1.AnnotationHeldFor, tarnv1.AnnotationClaim, tarnv1.AnnotationTrashedUntil} {
		if _, there := vol.Annotations[key]; there {
			return true
		}
	}
	_, there := vol.Labels[tarnv1.LabelTrashedUntil]
	return there
}

// forget removes what the volume remembers of its claim.
func forget(vol *corev1.PersistentVolume) {
	volume.Untrash(vol)
	delete(vol.Annotations, tarnv1.AnnotationClaim)
}

func complaint(r volume.Retention) Event {
	if r.Wrong == "" {
		return Event{}
	}
	return Event{corev1.EventTypeWarning, eventInvalid, r.Wrong}
}

// write adds the wanted volume to a plan if it differs from the current one. An event of type
// Normal is emitted only with a write, a warning every time.
func write(v *View, want *corev1.PersistentVolume, p Plan) Plan {
	if equality.Semantic.DeepEqual(v.Volume, want) {
		if p.Event.Type == corev1.EventTypeNormal {
			p.Event = Event{}
		}
		p.Grave = false
		return p
	}
	p.Write = want
	return p
}
