package recycle

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
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
	Actions []action.Action
	// Step is the pod of the provisioner that is to be started; nil for none.
	Step *Step
	// Report writes condition Recycled of the record; empty if it stands.
	Report []action.Action
	// Next is when to reconcile if no event arrives; zero means never.
	Next time.Time
	// Waits is what a pod of the provisioner waits for. Runs means that such a pod runs.
	Waits string
	Runs  bool
}

// Step is a pod of the provisioner. If the provisioner does not support the method after all,
// that is recorded as a failure.
type Step struct {
	Step   tarnv1.Step
	Method tarnv1.RecycleMethod
	// Handle is the handle to delete, if it is not the volume's.
	Handle string
}

func (p *Plan) add(actions ...action.Action) { p.Actions = append(p.Actions, actions...) }

// change writes the volume.
func (p *Plan) change(v *View, to *corev1.PersistentVolume) {
	p.add(action.Patch{From: v.Volume, To: to})
}

// phase writes a phase of the volume, with reason and message.
func (p *Plan) phase(v *View, phase corev1.PersistentVolumePhase, reason, message string) {
	to := v.Volume.DeepCopy()
	to.Status.Phase, to.Status.Reason, to.Status.Message = phase, reason, message
	p.add(action.PatchStatus{From: v.Volume, To: to})
}

// annotate sets an annotation of the scrub claim, or removes it if value is empty.
func (p *Plan) annotate(claim *corev1.PersistentVolumeClaim, key, value string) {
	to := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&to.ObjectMeta, key, value)
	if value == "" {
		delete(to.Annotations, key)
	}
	p.add(action.Patch{From: claim, To: to})
}

// tell emits an Event about the volume.
func (p *Plan) tell(v *View, kind, reason, note string) {
	p.add(action.Emit{About: v.Volume, Type: kind, Reason: reason, Doing: "Recycle", Note: note})
}

// stop deletes the pods that are not being deleted yet.
func (p *Plan) stop(pods ...corev1.Pod) {
	for i := range pods {
		if pods[i].DeletionTimestamp == nil {
			p.add(action.Delete{Object: &pods[i]})
		}
	}
}

// plan decides what to do with the volume of the View.
func plan(v *View, now time.Time) Plan {
	var p Plan
	if v.Volume != nil && v.concerned() {
		planState(v, &p, now)
		report(v, &p)
	}
	return p
}

func planState(v *View, p *Plan, now time.Time) {
	switch stateOf(v) {
	case leaving:
		dismantle(v, p)
	case used:
		planUsed(v, p)
	case released:
		if !v.ours() && wasFreed(v.Volume) { // otherwise a cleared claimRef would make the volume look unused
			p.change(v, hadSince(v.Volume))
			return
		}
		planReleased(v, p, now)
	case scrubbing:
		planScrubbing(v, p, now)
	case verified:
		planVerified(v, p, now)
	case failed:
		planFailed(v, p, now)
	case joining:
	}
}

// dismantle stops all work on the volume, then deletes the scrub claim. It reports whether all
// is gone.
func dismantle(v *View, p *Plan) bool {
	if !stopWork(v, p) {
		return false
	}
	switch {
	case v.Pod != nil:
		p.stop(*v.Pod)
	case v.Claim != nil && v.Claim.DeletionTimestamp == nil:
		p.add(action.Delete{Object: v.Claim})
	case v.Claim == nil:
		return true
	}
	return false
}

// planUsed ends the passage. The volume gets its own policy back, and loses the reason of a
// failure, which binders do not clear.
func planUsed(v *View, p *Plan) {
	switch phase := v.Volume.Status.Phase; {
	case phase == corev1.VolumeBound && wasFreed(v.Volume): // recorded now, because the claim may be deleted before the phase changes
		p.change(v, hadSince(v.Volume))
	case phase != corev1.VolumeAvailable && phase != corev1.VolumeBound:
	case v.Volume.Status.Reason == eventFailed:
		p.phase(v, phase, "", "")
	case v.Volume.Annotations[tarnv1.AnnotationRecyclePolicy] != "":
		p.change(v, restored(v.Volume))
	}
}

// planReleased begins the passage of a volume whose claim is gone.
func planReleased(v *View, p *Plan, now time.Time) {
	vol := v.Volume
	method, wrong := methodOf(v)
	switch {
	case v.Holder != nil && v.Holder.UID == vol.Spec.ClaimRef.UID:
		return
	case method == "" && wrong == "":
		leave(v, p)
		return
	case vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle && !v.OwnBinder && kubernetesRecycles(vol):
		p.tell(v, corev1.EventTypeNormal, eventLeft, "Kubernetes' own binder recycles volumes of this source with policy Recycle; for Tarn to do it, set policy Retain and annotation "+tarnv1.AnnotationRecycle)
		return
	case wrong != "":
		refuse(v, p, wrong)
		return
	case volume.DeletionProtected(vol):
		p.tell(v, corev1.EventTypeWarning, eventFailed, fmt.Sprintf("label %s protects the volume, so it is not scrubbed; to lift that: kubectl label persistentvolumes %s %s-",
			tarnv1.LabelDeletionProtection, vol.Name, tarnv1.LabelDeletionProtection))
		return
	}
	waits, until, why := inTrash(v, now)
	switch {
	case !waits:
		begin(v, p, now)
	case why != "":
		p.tell(v, corev1.EventTypeNormal, eventRetained, why)
		p.Next = kube.Sooner(until, now.Add(retentionLook))
	default:
		p.Next = until
	}
}

// begin creates a scrub claim, then points the volume at it.
func begin(v *View, p *Plan, now time.Time) {
	vol := v.Volume
	if f := failureOf(vol); f != nil {
		if at := retryTime(vol, f); now.Before(at) {
			p.Next = at
			return
		}
	}
	switch {
	case !v.Live:
		p.Grave = true
	case len(v.Users) > 0:
		p.tell(v, corev1.EventTypeNormal, eventFailed, "the volume is not scrubbed yet, because it is used by "+strings.Join(v.Users, ", "))
	case vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		p.change(v, kept(vol))
	case !stopWork(v, p): // pods of an earlier passage
	case v.Pod != nil: // of an earlier passage too
		p.stop(*v.Pod)
	case v.Claim == nil:
		p.add(action.Create{Object: scrubClaim(v)})
	case v.Claim.DeletionTimestamp == nil:
		p.change(v, given(vol, v.Claim))
	}
}

// planScrubbing takes a volume that points at its scrub claim to a certificate.
func planScrubbing(v *View, p *Plan, now time.Time) {
	method, wrong := methodOf(v)
	steps := v.provided(method)
	if asked, begun := v.begun(); len(begun) > 0 {
		method, steps = asked, begun
	}
	switch {
	case v.Claim.DeletionTimestamp != nil: // deleted from outside
		stopWork(v, p)
		if v.Pod != nil {
			p.stop(*v.Pod)
		}
	case !v.OwnBinder && v.Claim.Status.Phase == corev1.ClaimPending && v.Claim.Annotations[annNudged] == "":
		// If a claim names a volume that points at it, Kubernetes' binder processes only the
		// volume. The claim would wait for the binder's next round, up to 15 s.
		p.annotate(v.Claim, annNudged, v.Claim.Spec.VolumeName)
	case v.Claim.Status.Phase != corev1.ClaimBound || v.Volume.Status.Phase != corev1.VolumeBound:
	case v.Pod == nil && len(steps) > 0:
		planSteps(v, p, now, method, steps)
	case v.Pod == nil && method == "":
		note(v, p, now, "annotation "+tarnv1.AnnotationRecycle+" no longer names a method; "+wrong)
	case v.Pod == nil:
		p.add(action.Create{Object: scrubPod(v, method)})
	case v.Pod.DeletionTimestamp != nil:
	case v.Pod.Annotations[annClaim] != string(v.Claim.UID): // left by an earlier attempt
		p.stop(*v.Pod)
	default:
		judge(v, p, now)
	}
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
		p.change(v, certified(v.Volume, cert))
	case o.State == steppod.PodFailed && o.Reason == steppod.ReasonPodDeadline:
		note(v, p, now, o.Message)
	case pod.Status.Phase == corev1.PodFailed:
		note(v, p, now, failureOfPod(pod))
	default:
		if o.Message != "" {
			p.tell(v, corev1.EventTypeNormal, eventPod, "scrub pod "+pod.Namespace+"/"+pod.Name+": "+o.Message)
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
		p.annotate(v.Claim, annWaits, waits)
	}
}

// note records a failure of this attempt on the volume.
func note(v *View, p *Plan, now time.Time, message string) { p.change(v, noted(v, now, message)) }

// noted is the volume with one more failure.
func noted(v *View, now time.Time, message string) *corev1.PersistentVolume {
	f := tarnv1.RecycleFailure{Claim: string(v.passage()), Attempts: 1, Time: metav1.NewTime(now.UTC().Truncate(time.Second)), Message: kube.Note(message)}
	if last := failureOf(v.Volume); last != nil {
		f.Attempts += last.Attempts
	}
	vol := v.Volume.DeepCopy()
	metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationRecycleFailure, encode(f))
	return vol
}

// planVerified removes the scrub claim of a verified volume and frees the volume.
func planVerified(v *View, p *Plan, now time.Time) {
	if !dismantle(v, p) {
		return
	}
	p.stop(v.Work...) // they are no longer read
	p.stop(v.Earlier...)
	switch {
	case !v.Live:
		p.Grave = true
	case len(v.Recyclers) > 0: // the recycler began just before the volume got its scrub claim
		p.tell(v, corev1.EventTypeNormal, eventFailed, "the volume is scrubbed, but not Available yet, because it is used by "+strings.Join(v.Recyclers, ", "))
	default:
		p.change(v, freed(v.Volume, now))
		p.tell(v, corev1.EventTypeNormal, eventRecycled, "Volume recycled")
	}
}

// planFailed removes the scrub claim of a volume that could not be scrubbed, reports that, and
// retries after a pause.
func planFailed(v *View, p *Plan, now time.Time) {
	f := failureOf(v.Volume)
	if v.Claim != nil && string(v.Claim.UID) != f.Claim {
		begin(v, p, now) // created for the next attempt
		return
	}
	method, wrong := methodOf(v)
	switch {
	case !dismantle(v, p):
	case method == "" && wrong == "":
		leave(v, p)
	case v.Volume.Status.Phase == corev1.VolumeReleased:
		refuse(v, p, f.Message)
	case v.Volume.Status.Phase == corev1.VolumeFailed && method != "":
		begin(v, p, now)
	case v.Volume.Status.Phase == corev1.VolumeFailed:
		refuse(v, p, wrong)
	}
}

// leave returns a volume that is no longer to be recycled to its driver, which acts by its
// policy. Drivers destroy Released volumes, but no Failed ones.
func leave(v *View, p *Plan) {
	if v.Volume.Status.Phase == corev1.VolumeFailed && v.Volume.Status.Reason == eventFailed {
		p.phase(v, corev1.VolumeReleased, "", "")
	}
}

// refuse reports once why a volume is not recycled.
func refuse(v *View, p *Plan, why string) {
	if now := v.Volume.Status; now.Phase == corev1.VolumeFailed && now.Message == why && now.Reason == eventFailed {
		return
	}
	p.phase(v, corev1.VolumeFailed, eventFailed, why)
	p.tell(v, corev1.EventTypeWarning, eventFailed, why)
}

// retryTime is when to retry a volume that could not be scrubbed.
func retryTime(vol *corev1.PersistentVolume, f *tarnv1.RecycleFailure) time.Time {
	return f.Time.Add(kube.Backoff(int32(min(f.Attempts, 100)), firstPause, longestPause, string(vol.UID)))
}
