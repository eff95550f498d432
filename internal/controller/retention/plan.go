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

// Plan is what to do about one volume; its zero value is nothing.
type Plan struct {
	// Write is the volume as it is to be, nil for as it is.
	Write *corev1.PersistentVolume
	// Grave says that data may be destroyed for what is written: it takes live looks.
	Grave bool
	// Event is told once the volume is written, if one has a reason.
	Event Event
	// Next is when to look again though no event tells; zero: not needed.
	Next time.Time
}

// Event is what is told to a volume.
type Event struct{ Type, Reason, Note string }

// state is where a volume stands between its claim and the trash; a closed set.
type state string

const (
	// foreign: being deleted, or being added to a pool or out of one.
	foreign state = "Foreign"
	// cleared: nobody's, and the binder has not seen it: drivers destroy by phase Released
	// and policy Delete, and do not look at claimRef.
	cleared state = "Cleared"
	// free: nobody's.
	free state = "Free"
	// reserved: promised to a claim that is yet to come.
	reserved state = "Reserved"
	// offered: made for a claim that has not taken it. Should the claim take another one,
	// the binder destroys this one by its policy, which must stand for that.
	offered state = "Offered"
	// claimed: a claim's.
	claimed state = "Claimed"
	// released: its claim has gone, and until when it is kept is not noted yet.
	released state = "Released"
	// trashed: it is kept until a time that is noted.
	trashed state = "Trashed"
	// over: it was kept, and its own policy is in force again.
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

// plan says what the View asks for.
func plan(v *View, now time.Time) Plan {
	if v.Volume == nil || !marked(v.Volume) && !retentionOf(v).Wanted() { // most volumes: each comes by several times in its life
		return Plan{}
	}
	want := v.Volume.DeepCopy()
	want.ManagedFields = v.Volume.ManagedFields // long, and nobody's here: the same one is compared in one step
	switch stateOf(v) {
	case free: // somebody has cleared claimRef: what is on it is nobody's claim's
		volume.LetGo(want)
		forget(want)
		return write(v, want, Plan{})
	case claimed:
		return planClaimed(v, want)
	case released:
		return planReleased(v, want, now)
	case trashed:
		return planTrashed(v, want, now)
	case over: // whose policy was set by hand is told nothing: it was done on purpose
		delete(want.Labels, tarnv1.LabelTrashedUntil)
		return write(v, want, Plan{})
	case foreign:
		return planForeign(want)
	}
	return Plan{}
}

// planForeign tells of a volume that is deleted while it is held. Its storage stays, as
// with policy Retain: what was to be kept is not destroyed for a slip.
func planForeign(vol *corev1.PersistentVolume) Plan {
	if vol.DeletionTimestamp == nil || !volume.Held(vol) || vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		return Plan{}
	}
	return Plan{Event: Event{corev1.EventTypeWarning, eventLeft, fmt.Sprintf(
		"the volume is being deleted during its retention; its storage is kept, and nothing deletes it later; to delete it with the volume: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"%s\"}}'",
		vol.Name, volume.OwnPolicy(vol))}}
}

// planClaimed holds a volume while it has a claim, and remembers the claim.
func planClaimed(v *View, want *corev1.PersistentVolume) Plan {
	r := retentionOf(v)
	volume.Untrash(want)
	switch {
	case r.Wrong != "":
		volume.Hold(want, v.Volume.Annotations[tarnv1.AnnotationHeldFor])
	case r.Wanted():
		volume.Hold(want, r.Text)
	case r.Unknown && volume.Held(want): // the class went; what it said stands
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

// planReleased notes until when a volume is kept whose claim has gone, counted from
// that moment. One that was released before anybody held it is held now, unless it has
// no own end: what has begun to destroy it looks at the policy again before it does.
func planReleased(v *View, want *corev1.PersistentVolume, now time.Time) Plan {
	r := retentionOf(v)
	if !volume.Held(want) && !r.Wanted() {
		return Plan{}
	}
	keep, text := r.Time, r.Text
	if r.Wrong != "" || r.Unknown {
		text = v.Volume.Annotations[tarnv1.AnnotationHeldFor]
		d, err := volume.ParseRetention(text)
		if err != nil { // nothing that was ever understood: it waits until it is put right
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

// planTrashed waits until the time is over, and then gives the volume the policy it is
// to have. A volume protected from deletion stays: its driver does not ask the label.
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

// marked says that a volume bears something of the trash's.
func marked(vol *corev1.PersistentVolume) bool {
	for _, key := range []string{tarnv1.AnnotationReclaimPolicy, tarnv1.AnnotationHeldFor, tarnv1.AnnotationClaim, tarnv1.AnnotationTrashedUntil} {
		if _, there := vol.Annotations[key]; there {
			return true
		}
	}
	_, there := vol.Labels[tarnv1.LabelTrashedUntil]
	return there
}

// forget removes what was remembered for the trash.
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

// write adds a volume to a plan, if it differs from the one at hand. An event that says
// that something was done is told with the write alone; a warning every time.
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
