package recycle

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// annMethod is the annotation of a provisioner's pod with the requested method.
const annMethod = "tarn.dev/scrub-method"

// Reasons of condition Recycled of a PavVolume.
const (
	// reasonRecycled: the volume is recycled and verified.
	reasonRecycled = "Recycled"
	// reasonFailed: an attempt failed. Correct the cause in the message; the next attempt follows
	// by itself.
	reasonFailed = "RecyclingFailed"
	// reasonPodWaits: a pod that recycles the volume cannot start. Correct the cause in the
	// message.
	reasonPodWaits = "PodWaiting"
	// reasonWorking: the volume is being recycled.
	reasonWorking = "Recycling"
)

// passage is the UID of the scrub claim that the volume points at.
func (v *View) passage() types.UID { return v.Volume.Spec.ClaimRef.UID }

// work is the pod of a step in this passage; nil for none.
func (v *View) work(step tarnv1.Step, other bool) *corev1.Pod {
	name := steppod.RecyclePodName(step, v.passage(), other)
	for i := range v.Work {
		if v.Work[i].Name == name {
			return &v.Work[i]
		}
	}
	return nil
}

// provided returns the steps by which the provisioner itself carries out a method; none if Tarn
// does.
func (v *View) provided(method tarnv1.RecycleMethod) []tarnv1.Step {
	if v.Record == nil || v.Provisioner == nil {
		return nil
	}
	return steppod.RecycleSteps(v.Provisioner, method)
}

// begun returns the method and the steps of a passage that has begun. The passage ends with
// that method, even if another is requested by now.
func (v *View) begun() (tarnv1.RecycleMethod, []tarnv1.Step) {
	switch {
	case v.Record == nil:
		return "", nil
	case v.work(tarnv1.StepDeletion, false) != nil, v.work(tarnv1.StepCreation, false) != nil:
		return tarnv1.RecycleRecreate, []tarnv1.Step{tarnv1.StepDeletion, tarnv1.StepCreation}
	case v.work(tarnv1.StepRecycling, false) != nil:
		return tarnv1.RecycleMethod(v.work(tarnv1.StepRecycling, false).Annotations[annMethod]), []tarnv1.Step{tarnv1.StepRecycling}
	}
	return "", nil
}

// planSteps runs the provisioner's own pods, one after the other. A scrub pod then verifies
// their work.
func planSteps(v *View, p *Plan, now time.Time, method tarnv1.RecycleMethod, steps []tarnv1.Step) {
	if method == tarnv1.RecycleRecreate && v.work(tarnv1.StepDeletion, false) == nil && v.work(tarnv1.StepCreation, false) != nil {
		// A second deletion would destroy what was created again.
		note(v, p, now, "the deletion pod was removed before the volume was created again")
		return
	}
	var last steppod.Observation
	for _, step := range steps {
		o, done := follow(v, p, now, Step{Step: step, Method: method})
		if !done {
			return
		}
		last = o
	}
	if steps[len(steps)-1] == tarnv1.StepCreation && !madeAnew(v, p, now, last) {
		return
	}
	p.add(action.Create{Object: checkPod(v, v.word(now, method, steps))})
}

// word is what the provisioner's pods claim to have done, once they have succeeded.
func (v *View) word(now time.Time, method tarnv1.RecycleMethod, steps []tarnv1.Step) tarnv1.RecycleCertificate {
	first, last := v.work(steps[0], false), v.work(steps[len(steps)-1], false)
	word := tarnv1.RecycleCertificate{
		Method: method, Provisioner: v.Record.Spec.Provisioner.Name, Image: last.Spec.Containers[0].Image,
		Seconds: now.Sub(first.CreationTimestamp.Time).Round(time.Second / 10).Seconds(),
	}
	if method != tarnv1.RecycleFiles {
		word.Bytes = v.Record.Status.Capacity
	}
	return word
}

// follow takes one step further, and reports whether it is done.
func follow(v *View, p *Plan, now time.Time, run Step) (steppod.Observation, bool) {
	o := steppod.Observe(v.work(run.Step, run.Handle != ""), v.Record.UID, now).After(waitedFor(v))
	switch o.State {
	case steppod.PodSucceeded:
		return o, true
	case steppod.PodAbsent:
		if p.Grave = !v.Live; p.Grave {
			return o, false
		}
		if len(v.Users) > 0 {
			p.tell(v, corev1.EventTypeNormal, eventFailed, "the volume is not recycled yet, because it is used by "+strings.Join(v.Users, ", "))
			p.Next = now.Add(usersLook)
			return o, false
		}
		if !stopWork(v, p) {
			return o, false
		}
		p.stop(v.Earlier...) // kept until now so that users can read them
		p.Step = &run
	case steppod.PodFailed, steppod.PodForeign:
		note(v, p, now, fmt.Sprintf("the %s pod failed: %s", run.Step, o.Message))
	default:
		if o.Message != "" {
			p.tell(v, corev1.EventTypeNormal, eventPod, fmt.Sprintf("the %s pod: %s", run.Step, o.Message))
		}
		if o.Waits() {
			p.Waits = fmt.Sprintf("the %s pod waits: %s", run.Step, o.Message)
		}
		p.Runs = o.State == steppod.PodRunning && !o.Waits()
		p.Next = o.CheckAt
	}
	return o, false
}

// waitedFor is what a pod of the provisioner was last seen waiting for; empty if it was nothing
// unusual.
func waitedFor(v *View) string {
	c := meta.FindStatusCondition(v.Record.Status.Conditions, tarnv1.ConditionRecycled)
	if c == nil || c.Reason != reasonPodWaits {
		return ""
	}
	_, waited, _ := strings.Cut(c.Message, " pod waits: ")
	return waited
}

// madeAnew reports whether what a creation pod has made can replace the volume. A
// PersistentVolume keeps its handle. So storage under another handle is deleted again, and then
// recorded as a failure.
func madeAnew(v *View, p *Plan, now time.Time, o steppod.Observation) bool {
	handle, err := steppod.Recreated(v.Record, o)
	own := cmp.Or(v.Record.Status.Handle, steppod.DefaultHandle(v.Record))
	if handle != own {
		if _, done := follow(v, p, now, Step{Step: tarnv1.StepDeletion, Method: tarnv1.RecycleRecreate, Handle: handle}); done {
			note(v, p, now, fmt.Sprintf("the creation pod returned handle %q, but the volume keeps handle %q for life; what the pod created is deleted again; set reclaim policy Delete instead of %s Recreate",
				handle, own, tarnv1.AnnotationRecycle))
		}
		return false
	}
	if err != nil {
		note(v, p, now, err.Error())
		return false
	}
	return true
}

// stopWork stops all unfinished pods of the provisioner, of any passage and purpose, and
// reports whether all have ended. Of two pods on one storage, one might undo the other's work,
// or continue under the next claim.
func stopWork(v *View, p *Plan) bool {
	ended := true
	for _, pods := range [][]corev1.Pod{v.Work, v.Earlier, v.Others} {
		for i := range pods {
			pod := &pods[i]
			if steppod.Ended(pod) {
				continue
			}
			if ended = false; pod.DeletionTimestamp == nil {
				p.stop(*pod)
			} else {
				p.tell(v, corev1.EventTypeNormal, eventPod, fmt.Sprintf("pod %s/%s is being deleted; recycling continues once it has ended", pod.Namespace, pod.Name))
			}
		}
	}
	return ended
}

// report keeps condition Recycled of the record in line with the volume.
func report(v *View, p *Plan) {
	if v.Record == nil {
		return
	}
	c := metav1.Condition{Type: tarnv1.ConditionRecycled, ObservedGeneration: v.Record.Generation}
	cert, failure := volume.CertificateOf(v.Volume), failureOf(v.Volume)
	switch {
	case p.Waits != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonPodWaits, p.Waits
	case p.Runs && waitedFor(v) != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonWorking, "the volume is being recycled"
	case failure != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonFailed, fmt.Sprintf("attempt %d: %s", failure.Attempts, failure.Message)
	case v.Volume.Status.Phase == corev1.VolumeFailed:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonFailed, v.Volume.Status.Message
	case cert != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonRecycled, fmt.Sprintf("by %s for scrub claim %s", cert.Method, cert.Claim)
	default:
		return
	}
	c.Message = kube.Message(c.Message)
	if said := meta.FindStatusCondition(v.Record.Status.Conditions, c.Type); said == nil || said.Status != c.Status || said.Message != c.Message {
		to := v.Record.DeepCopy()
		meta.SetStatusCondition(&to.Status.Conditions, c)
		p.Report = []action.Action{action.UpdateStatus{To: to}}
	}
}
