package recycle

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Events of recycling, on a PersistentVolume. All but the last two reasons are those of
// Kubernetes.
const (
	// eventFailed: the volume is not recycled, or not yet. The message has the cause: a failed
	// attempt, a label that protects the volume, or a user of it.
	eventFailed = "VolumeFailedRecycle"
	// eventRecycled: the volume is recycled and Available again.
	eventRecycled = "VolumeRecycled"
	// eventPod: the pod that recycles the volume waits. The message says for what.
	eventPod = "RecyclerPod"
	// eventLeft: Kubernetes' own controller recycles the volume. To let Tarn do it, set the policy
	// and annotation that the message names.
	eventLeft = "RecyclingLeftToKubernetes"
	// eventRetained: the volume is kept and not recycled, for the cause in the message.
	eventRetained = "VolumeRetained"
)

const (
	// firstPause and longestPause bound the pause after a failed scrub.
	firstPause, longestPause = time.Second, 10 * time.Minute
	// startTime is how long a scrub pod may wait for its start, in addition to its deadline.
	startTime = 10 * time.Minute
	// usersLook is how often an attached or staged volume is reconciled.
	usersLook = 10 * time.Second
	// retentionLook is how often a retention is checked. No event of the volume tells when its
	// class or its set changes.
	retentionLook = time.Minute
)

// Plan is what to do, in this order.
type Plan struct {
	// Grave means that the actions cannot be undone. They are planned again from the API
	// server's state.
	Grave   bool
	Actions []Action
	// Next is when to reconcile if no event arrives; zero means never.
	Next time.Time
	// Waits is what a pod of the provisioner waits for. Runs means that such a pod runs.
	Waits string
	Runs  bool
}

func (p *Plan) add(actions ...Action) { p.Actions = append(p.Actions, actions...) }

// Action is one write. It is one of the types below, each of which may be repeated without
// harm.
type Action interface{ action() }

type (
	// Order creates the scrub claim, Dismiss deletes it.
	Order   struct{ Claim *corev1.PersistentVolumeClaim }
	Dismiss struct{ Claim *corev1.PersistentVolumeClaim }
	// Nudge annotates the scrub claim, so that the binder processes it.
	Nudge struct{ Claim *corev1.PersistentVolumeClaim }
	// Remember records on the scrub claim what its pod waits for; empty for nothing.
	Remember struct {
		Claim *corev1.PersistentVolumeClaim
		Waits string
	}
	// StartPod creates the scrub pod, StopPod deletes it.
	StartPod struct{ Pod *corev1.Pod }
	StopPod  struct{ Pod *corev1.Pod }
	// Change writes the volume, if it is unchanged since it was read.
	Change struct{ To *corev1.PersistentVolume }
	// Fail writes phase Failed with reason and message. Unfail writes a phase with neither.
	Fail   struct{ Message string }
	Unfail struct{ Phase corev1.PersistentVolumePhase }
	// Post emits an Event about the volume.
	Post struct{ Type, Reason, Note string }
)

func (Order) action()    {}
func (Dismiss) action()  {}
func (Nudge) action()    {}
func (Remember) action() {}
func (StartPod) action() {}
func (StopPod) action()  {}
func (Change) action()   {}
func (Fail) action()     {}
func (Unfail) action()   {}
func (Post) action()     {}

// plan decides what to do with the volume of the View.
func plan(v *View, now time.Time) Plan {
	if v.Volume == nil || !v.concerned() {
		return Plan{}
	}
	p := planState(v, now)
	report(v, &p)
	return p
}

func planState(v *View, now time.Time) Plan {
	switch stateOf(v) {
	case leaving:
		p := Plan{}
		dismantle(v, &p)
		return p
	case used:
		return planUsed(v)
	case released:
		if !v.ours() && wasFreed(v.Volume) { // otherwise a cleared claimRef would make the volume look unused
			return Plan{Actions: []Action{Change{hadSince(v.Volume)}}}
		}
		return planReleased(v, now)
	case scrubbing:
		return planScrubbing(v, now)
	case verified:
		return planVerified(v, now)
	case failed:
		return planFailed(v, now)
	}
	return Plan{}
}

// dismantle stops all work on the volume, then deletes the scrub claim. It reports whether all
// is gone.
func dismantle(v *View, p *Plan) bool {
	if !stopWork(v, p) {
		return false
	}
	switch {
	case v.Pod != nil && v.Pod.DeletionTimestamp == nil:
		p.add(StopPod{v.Pod})
	case v.Pod != nil:
	case v.Claim != nil && v.Claim.DeletionTimestamp == nil:
		p.add(Dismiss{v.Claim})
	case v.Claim == nil:
		return true
	}
	return false
}

// planUsed ends the passage. The volume gets its own policy back, and loses the reason of a
// failure, which binders do not clear.
func planUsed(v *View) Plan {
	p := Plan{}
	switch phase := v.Volume.Status.Phase; {
	case phase == corev1.VolumeBound && wasFreed(v.Volume): // recorded now, because the claim may be deleted before the phase changes
		p.add(Change{hadSince(v.Volume)})
	case phase != corev1.VolumeAvailable && phase != corev1.VolumeBound:
	case v.Volume.Status.Reason == eventFailed:
		p.add(Unfail{phase})
	case v.Volume.Annotations[tarnv1.AnnotationRecyclePolicy] != "":
		p.add(Change{restored(v.Volume)})
	}
	return p
}

// planReleased begins the passage of a volume whose claim is gone.
func planReleased(v *View, now time.Time) Plan {
	p, vol := Plan{}, v.Volume
	method, wrong := methodOf(v)
	switch {
	case v.Holder != nil && v.Holder.UID == vol.Spec.ClaimRef.UID:
		return p
	case method == "" && wrong == "":
		leave(v, &p)
		return p
	case vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle && !v.OwnBinder && kubernetesRecycles(vol):
		p.add(Post{corev1.EventTypeNormal, eventLeft, "Kubernetes' own binder recycles volumes of this source with policy Recycle; for Tarn to do it, set policy Retain and annotation " + tarnv1.AnnotationRecycle})
		return p
	case wrong != "":
		refuse(v, &p, wrong)
		return p
	case volume.DeletionProtected(vol):
		p.add(Post{corev1.EventTypeWarning, eventFailed, fmt.Sprintf("label %s protects the volume, so it is not scrubbed; to lift that: kubectl label persistentvolumes %s %s-",
			tarnv1.LabelDeletionProtection, vol.Name, tarnv1.LabelDeletionProtection)})
		return p
	}
	if waits, until, why := inTrash(v, now); waits {
		p.Next = until
		if why != "" {
			p.add(Post{corev1.EventTypeNormal, eventRetained, why})
			p.Next = kube.Sooner(until, now.Add(retentionLook))
		}
		return p
	}
	return begin(v, now)
}

// begin creates a scrub claim, then points the volume at it.
func begin(v *View, now time.Time) Plan {
	p, vol := Plan{}, v.Volume
	if f := failureOf(vol); f != nil {
		if p.Next = retryTime(vol, f); now.Before(p.Next) {
			return p
		}
		p.Next = time.Time{}
	}
	if p.Grave = !v.Live; p.Grave {
		return p
	}
	switch {
	case len(v.Users) > 0:
		p.add(Post{corev1.EventTypeNormal, eventFailed, "the volume is not scrubbed yet, because it is used by " + strings.Join(v.Users, ", ")})
	case vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		p.add(Change{kept(vol)})
	case !stopWork(v, &p): // pods of an earlier passage
	case v.Pod != nil && v.Pod.DeletionTimestamp == nil: // of an earlier passage too
		p.add(StopPod{v.Pod})
	case v.Pod != nil:
	case v.Claim == nil:
		p.add(Order{scrubClaim(v)})
	case v.Claim.DeletionTimestamp == nil:
		p.add(Change{given(vol, v.Claim)})
	}
	return p
}

// planScrubbing takes a volume that points at its scrub claim to a certificate.
func planScrubbing(v *View, now time.Time) Plan {
	p := Plan{}
	method, wrong := methodOf(v)
	steps := v.provided(method)
	if asked, begun := v.begun(); len(begun) > 0 {
		method, steps = asked, begun
	}
	switch {
	case v.Claim.DeletionTimestamp != nil: // deleted from outside
		stopWork(v, &p)
		if v.Pod != nil && v.Pod.DeletionTimestamp == nil {
			p.add(StopPod{v.Pod})
		}
	case !v.OwnBinder && v.Claim.Status.Phase == corev1.ClaimPending && v.Claim.Annotations[annNudged] == "":
		// If a claim names a volume that points at it, Kubernetes' binder processes only the
		// volume. The claim would wait for the binder's next round, up to 15 s.
		p.add(Nudge{v.Claim})
	case v.Claim.Status.Phase != corev1.ClaimBound || v.Volume.Status.Phase != corev1.VolumeBound:
	case v.Pod == nil && len(steps) > 0:
		planSteps(v, &p, now, method, steps)
	case v.Pod == nil && method == "":
		note(v, &p, now, "annotation "+tarnv1.AnnotationRecycle+" no longer names a method; "+wrong)
	case v.Pod == nil:
		p.add(StartPod{scrubPod(v, method)})
	case v.Pod.DeletionTimestamp != nil:
	case v.Pod.Annotations[annClaim] != string(v.Claim.UID): // left by an earlier attempt
		p.add(StopPod{v.Pod})
	default:
		judge(v, &p, now)
	}
	return p
}

// judge follows the scrub pod. A pod that no kubelet has started gets startTime on top of its
// deadline.
func judge(v *View, p *Plan, now time.Time) {
	pod, grace := v.Pod, time.Duration(0)
	if pod.Status.StartTime == nil {
		grace = startTime
	}
	o := steppod.Observe(pod, v.Volume.UID, now.Add(-grace)).After(v.Claim.Annotations[annWaits])
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		cert, err := readCertificate(pod)
		if err != nil {
			note(v, p, now, err.Error())
			return
		}
		p.add(Change{certified(v.Volume, cert)})
	case o.State == steppod.PodFailed && o.Reason == steppod.ReasonPodDeadline:
		note(v, p, now, o.Message)
	case pod.Status.Phase == corev1.PodFailed:
		note(v, p, now, failureOfPod(pod))
	default:
		if o.Message != "" {
			p.add(Post{corev1.EventTypeNormal, eventPod, "scrub pod " + pod.Namespace + "/" + pod.Name + ": " + o.Message})
		}
		remember(v, p, o)
		if !o.CheckAt.IsZero() {
			p.Next = o.CheckAt.Add(grace)
		}
	}
}

// remember keeps what a scrub pod waits for until it runs. If a container never started, the
// kubelet overwrites the cause when it ends the pod.
func remember(v *View, p *Plan, o steppod.Observation) {
	waits := ""
	switch {
	case o.Waits():
		waits = kube.Message(o.Message)
	case o.State != steppod.PodRunning:
		return
	}
	if waits != v.Claim.Annotations[annWaits] {
		p.add(Remember{v.Claim, waits})
	}
}

// note records a failure of this attempt on the volume.
func note(v *View, p *Plan, now time.Time, message string) {
	p.add(Change{noted(v.Volume, v.passage(), now, message)})
}

// noted is a volume with one more failure.
func noted(vol *corev1.PersistentVolume, passage types.UID, now time.Time, message string) *corev1.PersistentVolume {
	f := tarnv1.RecycleFailure{Claim: string(passage), Attempts: 1, Time: metav1.NewTime(now.UTC().Truncate(time.Second)), Message: kube.Note(message)}
	if last := failureOf(vol); last != nil {
		f.Attempts += last.Attempts
	}
	return withFailure(vol, f)
}

// planVerified removes the scrub claim of a verified volume and frees the volume.
func planVerified(v *View, now time.Time) Plan {
	p := Plan{}
	if !dismantle(v, &p) {
		return p
	}
	dropWork(v, &p)
	if p.Grave = !v.Live; !p.Grave && len(v.Recyclers) > 0 { // the recycler began just before the volume got its scrub claim
		p.add(Post{corev1.EventTypeNormal, eventFailed, "the volume is scrubbed, but not Available yet, because it is used by " + strings.Join(v.Recyclers, ", ")})
	} else if !p.Grave {
		p.add(Change{freed(v.Volume, now)}, Post{corev1.EventTypeNormal, eventRecycled, "Volume recycled"})
	}
	return p
}

// planFailed removes the scrub claim of a volume that could not be scrubbed, reports that, and
// retries after a pause.
func planFailed(v *View, now time.Time) Plan {
	p, f := Plan{}, failureOf(v.Volume)
	if v.Claim != nil && string(v.Claim.UID) != f.Claim {
		return begin(v, now) // created for the next attempt
	}
	method, wrong := methodOf(v)
	switch {
	case !dismantle(v, &p):
	case method == "" && wrong == "":
		leave(v, &p)
	case v.Volume.Status.Phase == corev1.VolumeReleased:
		refuse(v, &p, f.Message)
	case v.Volume.Status.Phase == corev1.VolumeFailed && method != "":
		return begin(v, now)
	case v.Volume.Status.Phase == corev1.VolumeFailed:
		refuse(v, &p, wrong)
	}
	return p
}

// leave returns a volume that is no longer to be recycled to its driver, which acts by its
// policy. Drivers destroy Released volumes, but no Failed ones.
func leave(v *View, p *Plan) {
	if v.Volume.Status.Phase == corev1.VolumeFailed && v.Volume.Status.Reason == eventFailed {
		p.add(Unfail{corev1.VolumeReleased})
	}
}

// refuse reports once why a volume is not recycled.
func refuse(v *View, p *Plan, why string) {
	if now := v.Volume.Status; now.Phase == corev1.VolumeFailed && now.Message == why && now.Reason == eventFailed {
		return
	}
	p.add(Fail{why}, Post{corev1.EventTypeWarning, eventFailed, why})
}

// retryTime is when to retry a volume that could not be scrubbed.
func retryTime(vol *corev1.PersistentVolume, f *tarnv1.RecycleFailure) time.Time {
	return f.Time.Add(kube.Backoff(int32(min(f.Attempts, 100)), firstPause, longestPause, string(vol.UID)))
}
