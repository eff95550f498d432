package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// beingMade is about a volume whose record has no PersistentVolume yet. claim is the claim that it
// is created for, nil if it is gone.
func (s *story) beingMade(v *volumeView, claim *corev1.PersistentVolumeClaim) {
	r := v.Record
	link := len(s.links)
	s.record(v, tarnv1.ConditionProvisioned)
	if waits := handleGoing(r); waits != "" {
		s.links[link].Next = "when the storage of the other volume is deleted"
		s.blame("%s", waits)
		return
	}
	switch r.Status.Phase {
	case "", tarnv1.VolumePending:
		s.betweenAttempts(v, claim, s.links[link])
	case tarnv1.VolumeValidating:
		s.awaits("its claim is being validated")
		s.stepPod(v, tarnv1.StepValidation)
		s.afterFailure(r, link)
	case tarnv1.VolumeCreating:
		s.awaits("its volume is being made, attempt %d", r.Status.Attempts)
		s.stepPod(v, tarnv1.StepCreation)
		s.afterFailure(r, link)
	case tarnv1.VolumeCreated:
		s.links[link].Next = "within moments"
		s.awaits("its volume is made, and its PersistentVolume is about to be created")
		if c := meta.FindStatusCondition(r.Status.Conditions, tarnv1.ConditionProvisioned); c != nil && c.Status != metav1.ConditionTrue && !s.young(c.LastTransitionTime.Time) {
			if c.Reason == inProgress { // no controller has reported an obstacle
				s.controllerSilent("its volume is made, and its PersistentVolume has to be created", c.LastTransitionTime.Time)
				return
			}
			s.blame("its volume is made, but its PersistentVolume is not created: %s", c.Message)
			s.controllerSilent("", c.LastTransitionTime.Time)
		}
	case tarnv1.VolumeDisputed:
		s.disputed(v, link)
	default:
		s.undoing(v)
	}
}

// handleGoing returns the controller's message if a volume must wait for another one that has the
// same handle and whose storage is being deleted; empty otherwise.
func handleGoing(r *tarnv1.PavVolume) string {
	switch r.Status.Phase {
	case "", tarnv1.VolumePending, tarnv1.VolumeValidating:
		if c := meta.FindStatusCondition(r.Status.Conditions, tarnv1.ConditionProvisioned); c != nil && c.Reason == steppod.ReasonHandleGoing {
			return c.Message
		}
	}
	return ""
}

// inProgress is the reason of a condition while the controller is at work.
const inProgress = "InProgress"

// disputed is about a creation that returned the handle of another volume. The record's last error
// says so.
func (s *story) disputed(v *volumeView, at int) {
	r, link := v.Record, s.links[at]
	link.Next = "when an administrator has resolved it by hand; then the command makes Tarn start over with the claim"
	link.Command = kubectl("", "delete", "pavvolume", r.Name)
	if e := r.Status.LastError; e != nil {
		link.Since, link.Reason, link.Message = moment(e.Time.Time), e.Reason, e.Message
		s.blame("%s", e.Message)
	}
}

// afterFailure adds the error of the previous attempt, in front of the state of the current one. It
// likely tells more.
func (s *story) afterFailure(r *tarnv1.PavVolume, at int) {
	failed := r.Status.LastError
	if failed == nil {
		return
	}
	s.links[at].Message += fmt.Sprintf("; attempt %d failed: %s", r.Status.Attempts-1, failed.Message)
	s.blame("attempt %d failed: %s; now %s", r.Status.Attempts-1, failed.Message, s.cause)
}

// record adds the link of a record, with the message of one of its conditions.
func (s *story) record(v *volumeView, condition string) *Link {
	r := v.Record
	link := s.add(Link{Object: Object{Kind: pavVolume, Name: r.Name}, State: cmp.Or(string(r.Status.Phase), "new"), Since: moment(r.CreationTimestamp.Time),
		Message: "made by PavProvisioner " + r.Spec.Provisioner.Name})
	if c := meta.FindStatusCondition(r.Status.Conditions, condition); c != nil {
		link.Since, link.Reason = moment(c.LastTransitionTime.Time), c.Reason
		if c.Message != "" {
			link.Message += "; " + c.Message
		}
	}
	return link
}

// betweenAttempts is about a record that waits for its first or next attempt.
func (s *story) betweenAttempts(v *volumeView, claim *corev1.PersistentVolumeClaim, link *Link) {
	r, failed := v.Record, v.Record.Status.LastError
	if p := v.Provisioner; p != nil && p.UID == r.Spec.Provisioner.UID && s.provisionerUnusable(p, true) {
		return
	}
	if failed == nil {
		link.Next = "within moments"
		s.awaits("PavProvisioner %s is about to start", r.Spec.Provisioner.Name)
		c := meta.FindStatusCondition(r.Status.Conditions, tarnv1.ConditionProvisioned)
		switch {
		case v.Provisioner == nil && c != nil && c.Status != metav1.ConditionTrue: // else provisionerUnusable above judges it
			link.Next = ""
			s.blame("PavProvisioner %s has not started: %s", r.Spec.Provisioner.Name, c.Message)
		case !s.young(writtenAt(r)) && (v.Provisioner == nil || !s.young(writtenAt(v.Provisioner))):
			link.Next = ""
			s.controllerSilent("the first attempt of PavProvisioner "+r.Spec.Provisioner.Name+" is due", writtenAt(r))
		}
		return
	}
	link.Since, link.Reason, link.Message = moment(failed.Time.Time), failed.Reason, failed.Message
	what := "its volume could not be made"
	if failed.Step == tarnv1.StepValidation {
		what = fmt.Sprintf("PavProvisioner %s rejects it", r.Spec.Provisioner.Name)
	}
	s.blame("%s, attempt %d: %s", what, r.Status.Attempts, failed.Message)
	again, due := awaitsNode(v, claim), r.Status.NextAttemptTime
	if again {
		link.Next = fmt.Sprintf("attempt %d when the scheduler has selected a node again, which needs a pod that uses the claim", r.Status.Attempts+1)
		if due != nil && due.After(s.view.Now) {
			link.Next += ", and not before " + due.UTC().Format(time.TimeOnly+"Z")
		}
	} else {
		link.Next = fmt.Sprintf("attempt %d %s; at once if the PavProvisioner is changed", r.Status.Attempts+1, cmp.Or(when(due, s.view.Now), "soon"))
		// Nothing was created or everything was undone, so the record holds nothing. After its
		// deletion the next attempt begins at once.
		link.Command = kubectl("", "delete", "pavvolume", r.Name)
	}
	if (failed.Reason == steppod.ReasonTemplate || failed.Reason == steppod.ReasonInvalid) && !beyondLimit(claim) { // the next attempt would fail in the same way
		link.Command = kubectl("", "edit", "pavprovisioner", r.Spec.Provisioner.Name)
	}
	s.stepPod(v, failed.Step)
	if due != nil && due.Before(&metav1.Time{Time: s.view.Now}) && !again {
		s.late(due.Time)
	}
}

// beyondLimit says whether a claim, nil for none, asks for more than its own limit. Then not the
// template is to be corrected, but the claim.
func beyondLimit(claim *corev1.PersistentVolumeClaim) bool {
	if claim == nil {
		return false
	}
	_, beyond := volume.BeyondLimit(claim)
	return beyond
}

// awaitsNode says whether the next attempt waits until the scheduler selects a node for the claim.
// A failed attempt has given up the node that was selected before.
func awaitsNode(v *volumeView, claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && claim.Annotations[volume.AnnSelectedNode] == "" &&
		v.Record.Spec.WaitsForNode && v.Provisioner != nil && v.Provisioner.Spec.Topology == pavv1.TopologyNode
}

// undoing is about a record whose deletion pod removes what a creation may have left.
func (s *story) undoing(v *volumeView) {
	r := v.Record
	failed := r.Status.LastError
	what, not := "Tarn is removing what an attempt may have left", "Tarn cannot yet remove what an attempt may have left"
	if r.Status.Phase == tarnv1.VolumeDeleting {
		what, not = "its storage is being destroyed", "its storage cannot be destroyed yet"
	}
	switch kept := keptFrom(v); {
	case kept != "":
		s.blame("%s: %s", not, kept)
		step, _, _ := stepOf(r)
		s.stepPod(v, step)
	case failed != nil && failed.Step == tarnv1.StepDeletion:
		s.deletionFailing(v)
		return
	default:
		s.blame("%s, attempt %d", what, r.Status.DeletionAttempts)
		s.stepPod(v, tarnv1.StepDeletion)
	}
	// If the reasons differ, the attempt was given up for another reason, and the error is an older
	// one's.
	if c := meta.FindStatusCondition(r.Status.Conditions, tarnv1.ConditionProvisioned); c != nil && failed != nil && c.Reason == failed.Reason {
		s.blame("attempt %d failed: %s; now %s", r.Status.Attempts, failed.Message, s.cause)
	}
}

// deletionFailing is about a record whose deletion pods fail.
func (s *story) deletionFailing(v *volumeView) {
	r := v.Record
	link := s.links[len(s.links)-1]
	link.Since, link.Reason, link.Message = moment(r.Status.LastError.Time.Time), r.Status.LastError.Reason, r.Status.LastError.Message
	failed := fmt.Sprintf("its storage could not be removed: %s", r.Status.LastError.Message)
	if r.Status.NextDeletionTime == nil {
		s.blame("attempt %d is under way", r.Status.DeletionAttempts)
		s.stepPod(v, tarnv1.StepDeletion)
		s.blame("%s; now %s", failed, s.cause)
		return
	}
	link.Next = fmt.Sprintf("attempt %d %s; at once if the PavProvisioner is changed, or with: tarn retry volume %s", r.Status.DeletionAttempts+1, when(r.Status.NextDeletionTime, s.view.Now), r.Name)
	if r.Status.Phase == tarnv1.VolumeUndoing {
		link.Message += "; to undo with the corrected class: tarn retry volume " + r.Name + " --current-class"
	}
	link.Message += "; to abandon the storage: tarn forget volume " + r.Name
	link.Command = kubectl("", "edit", "pavprovisioner", r.Spec.Provisioner.Name)
	s.blame("%s (attempt %d)", failed, r.Status.DeletionAttempts)
	s.stepPod(v, tarnv1.StepDeletion)
	if p := v.Step; p == nil || p.Pod.DeletionTimestamp == nil { // else that pod must be gone first
		s.late(r.Status.NextDeletionTime.Time)
	}
}

// stepPod adds the pod of a record's step, and reports what blocks it.
func (s *story) stepPod(v *volumeView, step tarnv1.Step) {
	p, r := v.Step, v.Record
	if p == nil {
		want, attempt, namespace := stepOf(r)
		name := podName(r, step, attempt)
		if want == step && awaited(r, step) && !s.view.unknown(Pod, namespace, name) && (step != tarnv1.StepDeletion || keptFrom(v) == "") {
			s.add(Link{Object: Object{Pod, namespace, name}, State: "missing", Next: "when tarn controller starts it"})
			s.lateFor(writtenAt(r))
		}
		return
	}
	before, at := s.cause, len(s.links)
	s.ourPod(p, step, r.Spec.Provisioner.Name, steppod.Observe(p.Pod, r.UID, s.view.Now))
	if s.cause != before { // the pod is nearer to the cause, and a new attempt would meet it again
		for _, l := range s.links[:at] {
			l.Command = ""
		}
	}
	if awaited(r, step) {
		s.lateAfter(p.Pod, r.UID)
	}
}

// ourPod adds a step pod, and reports what keeps it from ending.
func (s *story) ourPod(p *podView, step tarnv1.Step, provisioner string, o steppod.Observation) {
	link, t := s.podLink(p)
	what := fmt.Sprintf("the %s pod %s", step, link.Object.fullName())
	remake := kubectl("", "edit", "pavprovisioner", provisioner) + " && " + kubectl(p.Pod.Namespace, "delete", "pod", p.Pod.Name)
	switch o.State {
	case steppod.PodForeign:
		link.Message, link.Next = o.Message, "when that pod is gone; its owner has to delete it"
		s.blame("a pod that is not Tarn's has the name of the %s pod", step)
		return
	case steppod.PodGoing:
		s.ourPodGoing(p, link, what, o)
		return
	case steppod.PodSettling:
		link.State, link.Next = "ended", "when the node agent on "+p.Pod.Spec.NodeName+" has read what it left in /pav"
		s.blame("%s has ended, and the node agent on %s has not read what it left in /pav", what, p.Pod.Spec.NodeName)
		return
	case steppod.PodFailed:
		link.State = "failed"
		if o.Reason == steppod.ReasonPodDeadline || t.Message == "" {
			link.Message = o.Message
		}
		if told := resultError(p.Pod); told != "" {
			link.Message = "/pav/error: " + told
		}
		return
	case steppod.PodSucceeded:
		return
	}
	s.ourPodUnderWay(p, link, t, what, remake, o)
}

// ourPodGoing says what keeps a step pod that is being deleted before it has ended.
func (s *story) ourPodGoing(p *podView, link *Link, what string, o steppod.Observation) {
	if volume.ShutDown(p.Pod) && len(p.Pod.Finalizers) > 0 { // its node is done with it
		s.cause = ""
		s.keepers(link.Object, "pod", p.Pod, "", true)
		s.cause = fmt.Sprintf("%s is being deleted: %s", what, s.cause)
		return
	}
	link.Message, link.Next = cmp.Or(o.Message, link.Message, endsBy(p.Pod)), "when the pod is gone"
	if o.Message != "" {
		s.blame("%s cannot be deleted: node %s does not respond", what, p.Pod.Spec.NodeName)
	} else if how := s.nodeDown(p); how != "" {
		s.blame("%s is being deleted, but its node %s %s", what, p.Pod.Spec.NodeName, how)
	}
}

// ourPodUnderWay says how far a step pod that has not ended is, what blocks it, and when it is
// given up.
func (s *story) ourPodUnderWay(p *podView, link *Link, t trouble, what, remake string, o steppod.Observation) {
	deadline := ""
	if !o.CheckAt.IsZero() {
		deadline = "it times out " + when(&metav1.Time{Time: o.CheckAt}, s.view.Now)
	}
	switch how := s.downUnlessStuck(p, t); {
	case how != "":
		s.blame("%s is on node %s, which %s", what, p.Pod.Spec.NodeName, how)
	case t.stuck():
		link.Next = cmp.Or(deadline, "when that problem is fixed")
		link.Command = remake
		s.blame("%s %s", what, keptBy(t))
	case t.State == "running":
		link.Next = "when it ends"
		if deadline != "" {
			link.Next += "; " + deadline
		}
		s.awaits("%s has been running for %s", what, s.ago(t.Since))
	default:
		link.Next = "when its containers start"
		if e := p.startFailure(); e != nil {
			link.Reason, link.Message = e.Reason, e.Message
			s.blame("%s does not start: %s", what, e.Message)
			return
		}
		if e := newest(p.Events, startReasons...); e != nil {
			link.Reason, link.Message = e.Reason, e.Message
		}
		s.awaits("%s is starting", what)
	}
}

// keptBy words what blocks a pod.
func keptBy(t trouble) string {
	switch t.Reason {
	case corev1.PodReasonUnschedulable, corev1.PodReasonSchedulerError:
		return "is not scheduled: " + t.Message
	case corev1.PodReasonSchedulingGated:
		return "is held back by scheduling gates"
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
		return "cannot pull its image: " + cmp.Or(t.Message, t.Reason)
	case crashing:
		return "keeps crashing: " + t.Message
	}
	return fmt.Sprintf("%s (%s): %s", t.State, t.Reason, t.Message)
}

// podLink adds the link of a pod with the end of its log.
func (s *story) podLink(p *podView) (*Link, trouble) {
	t := look(p.Pod)
	link := s.add(Link{Object: Object{Pod, p.Pod.Namespace, p.Pod.Name}, State: t.State, Since: moment(t.Since), Node: p.Pod.Spec.NodeName,
		Reason: t.Reason, Message: t.Message, Log: p.Log})
	return link, t
}

// nodeDown adds the node of a pod if it is gone or not ready, and words that. It is empty
// otherwise.
func (s *story) nodeDown(p *podView) string {
	name := p.Pod.Spec.NodeName
	switch {
	case p.NodeGone:
		s.add(Link{Object: Object{Kind: node, Name: name}, State: "missing", Next: "when Kubernetes deletes the pod, about a minute after its node, or when a node of that name exists"})
		return "no longer exists"
	case name == "" || p.Node == nil:
		return ""
	}
	for _, c := range p.Node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			s.add(Link{Object: Object{Kind: node, Name: name}, State: "not ready", Since: moment(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message, Next: "when its kubelet responds again"})
			return "is not ready"
		}
	}
	return ""
}

// downUnlessStuck is nodeDown for a pod without a worse problem.
func (s *story) downUnlessStuck(p *podView, t trouble) string {
	if t.stuck() {
		return ""
	}
	return s.nodeDown(p)
}

// resultError returns what a pod has written to /pav/error, empty for nothing.
func resultError(pod *corev1.Pod) string {
	var result tarnv1.PodResult
	if json.Unmarshal([]byte(pod.Annotations[tarnv1.AnnotationResult]), &result) != nil {
		return ""
	}
	return result.Error
}

// lastTry words when an Event was last seen.
func (s *story) lastTry(e *corev1.Event) string {
	return fmt.Sprintf("last tried %s ago", s.ago(LastSeen(e).Truncate(time.Second)))
}
