package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of the conditions of a record.
const (
	inProgress  = "InProgress"         // the controller is at work
	podWaits    = "DeletionPodWaiting" // the deletion pod waits for something
	podRuns     = "CreationPodRunning" // the creation pod must end before the deletion pod starts
	stillStaged = "Staged"             // a node has the volume staged
)

// conditionIn returns a condition; it is empty if there is none of that type.
func conditionIn(conditions []metav1.Condition, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// record adds the link of a record, with the message of one of its conditions.
func (s *story) record(v *volumeView, kind string) (*Link, metav1.Condition) {
	r := v.Record
	link := s.add(Link{Object: Object{Kind: pavVolume, Name: r.Name}, State: cmp.Or(string(r.Status.Phase), "new"), Since: moment(r.CreationTimestamp.Time),
		Message: "made by PavProvisioner " + r.Spec.Provisioner.Name})
	c := conditionIn(r.Status.Conditions, kind)
	if c.Type != "" {
		link.Since, link.Reason, link.Message = moment(c.LastTransitionTime.Time), c.Reason, strings.TrimSuffix(link.Message+"; "+c.Message, "; ")
	}
	return link, c
}

// failedWith copies a recorded error.
func (l *Link) failedWith(e *tarnv1.PavVolumeError) {
	l.Since, l.Reason, l.Message = moment(e.Time.Time), e.Reason, e.Message
}

// beingMade is about a volume whose record has no PersistentVolume yet. claim is the claim that it
// is created for, nil if it is gone.
func (s *story) beingMade(v *volumeView, claim *corev1.PersistentVolumeClaim) {
	status, name := &v.Record.Status, v.Record.Name
	link, c := s.record(v, tarnv1.ConditionProvisioned)
	switch status.Phase {
	case "", tarnv1.VolumePending, tarnv1.VolumeValidating:
		if c.Reason == steppod.ReasonHandleGoing {
			link.Next = "when the storage of the other volume is deleted"
			s.blame("%s", c.Message)
			return
		}
	}
	switch status.Phase {
	case "", tarnv1.VolumePending:
		s.betweenAttempts(v, claim, link, c)
	case tarnv1.VolumeValidating, tarnv1.VolumeCreating:
		s.awaits("its volume is being made, attempt %d", status.Attempts)
		if status.Phase == tarnv1.VolumeValidating {
			s.awaits("its claim is being validated")
		}
		s.stepPod(v)
		if failed := status.LastError; failed != nil { // of the previous attempt; it likely tells more
			link.Message += fmt.Sprintf("; attempt %d failed: %s", status.Attempts-1, failed.Message)
			s.blame("attempt %d failed: %s; now %s", status.Attempts-1, failed.Message, s.cause)
		}
	case tarnv1.VolumeCreated:
		link.Next = "within moments"
		s.awaits("its volume is made, and its PersistentVolume is about to be created")
		switch since := c.LastTransitionTime.Time; {
		case c.Status != metav1.ConditionFalse || s.young(since):
		case c.Reason == inProgress: // no controller has reported an obstacle
			s.controllerSilent("its volume is made, and its PersistentVolume has to be created", since)
		default:
			s.blame("its volume is made, but its PersistentVolume is not created: %s", c.Message)
			s.controllerSilent("", since)
		}
	case tarnv1.VolumeDisputed: // the creation returned the handle of another volume
		link.Next = "when an administrator has resolved it by hand; then the command makes Tarn start over with the claim"
		link.Command = kubectl("", "delete", "pavvolume", name)
		if e := status.LastError; e != nil {
			link.failedWith(e)
			s.blame("%s", e.Message)
		}
	default:
		s.undoing(v)
	}
}

// betweenAttempts is about a record that waits for its first or next attempt. link and c are those
// of its condition.
func (s *story) betweenAttempts(v *volumeView, claim *corev1.PersistentVolumeClaim, link *Link, c metav1.Condition) {
	r, p, failed, maker := v.Record, v.Provisioner, v.Record.Status.LastError, v.Record.Spec.Provisioner.Name
	if p != nil && p.UID == r.Spec.Provisioner.UID && s.provisionerUnusable(p, true) {
		return
	}
	if failed == nil {
		switch {
		case p == nil && c.Status == metav1.ConditionFalse: // else provisionerUnusable above judges it
			s.blame("PavProvisioner %s has not started: %s", maker, c.Message)
		case !s.young(writtenAt(r)) && (p == nil || !s.young(writtenAt(p))):
			s.controllerSilent("the first attempt of PavProvisioner "+maker+" is due", writtenAt(r))
		default:
			link.Next = "within moments"
			s.awaits("PavProvisioner %s is about to start", maker)
		}
		return
	}
	link.failedWith(failed)
	what := "its volume could not be made"
	if failed.Step == tarnv1.StepValidation {
		what = fmt.Sprintf("PavProvisioner %s rejects it", maker)
	}
	s.blame("%s, attempt %d: %s", what, r.Status.Attempts, failed.Message)
	due := r.Status.NextAttemptTime
	// A failed attempt has given up the node that was selected before.
	forNode := claim != nil && claim.Annotations[volume.AnnSelectedNode] == "" && r.Spec.WaitsForNode && p != nil && (p.Spec.Topology == pavv1.TopologyNode || p.Spec.Topology == pavv1.TopologyClaims)
	if forNode {
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
	beyond := false
	if claim != nil { // then not the template is to be corrected, but the claim
		_, beyond = volume.BeyondLimit(claim)
	}
	if (failed.Reason == steppod.ReasonTemplate || failed.Reason == steppod.ReasonInvalid) && !beyond { // the next attempt would fail in the same way
		link.Command = kubectl("", "edit", "pavprovisioner", maker)
	}
	s.remedy(v, claim, link)
	s.stepPod(v)
	if due != nil && due.Before(&metav1.Time{Time: s.view.Now}) && !forNode {
		s.late(due.Time)
	}
}

// noRoom is how provisioners say that a claim is larger than what its volume is made from.
const noRoom = "no room for"

// remedy offers what helps where the message of a failed attempt says that a retry alone does not: a
// smaller claim, or a class with another parameter.
func (s *story) remedy(v *volumeView, claim *corev1.PersistentVolumeClaim, link *Link) {
	message := v.Record.Status.LastError.Message
	if strings.Contains(message, noRoom) {
		link.Next = "when the claim is created again with a smaller size, or there is more room for volumes: " + link.Next
	}
	if claim == nil || !strings.Contains(message, "class") {
		return
	}
	class := &storagev1.StorageClass{}
	if json.Unmarshal(v.Record.Spec.ClassSnapshot.Raw, class) != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(class.Parameters)) {
		if slices.Contains(strings.FieldsFunc(message, notOfParameter), name) {
			link.Command = replacing(Object{Kind: storageClass, Name: volume.ClassOf(claim)}, "storageclass", "merge", fmt.Sprintf(`{"parameters":{%q:"VALUE"}}`, name))
			link.offer = "parameters of a class cannot be changed, so the command creates the class again; write the new value first; its claims and volumes are not affected"
			return
		}
	}
}

// notOfParameter says whether a character ends the name of a parameter.
func notOfParameter(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' }

// undoing is about a record whose deletion pod removes the storage, or what a creation may have
// left.
func (s *story) undoing(v *volumeView) {
	status, failed := &v.Record.Status, v.Record.Status.LastError
	what, not := "Tarn is removing what an attempt may have left", "Tarn cannot yet remove what an attempt may have left"
	if status.Phase == tarnv1.VolumeDeleting {
		what, not = "its storage is being destroyed", "its storage cannot be destroyed yet"
	}
	kept := keptFrom(v)
	switch {
	case kept != "":
		s.blame("%s: %s", not, kept)
	case failed != nil && failed.Step == tarnv1.StepDeletion:
		s.deletionFailing(v)
		return
	default:
		s.blame("%s, attempt %d", what, status.DeletionAttempts)
	}
	s.stepPod(v)
	// If the reasons differ, the attempt was given up for another reason, and the error is an older
	// one's.
	if failed != nil && conditionIn(status.Conditions, tarnv1.ConditionProvisioned).Reason == failed.Reason {
		s.blame("attempt %d failed: %s; now %s", status.Attempts, failed.Message, s.cause)
	}
}

// keptFrom returns what keeps the storage of a volume from being removed, besides the last error.
// It is the controller's own message; empty for nothing, or for what the pod or the stages report.
func keptFrom(v *volumeView) string {
	failed, c := v.Record.Status.LastError, conditionIn(v.Record.Status.Conditions, tarnv1.ConditionDeletable)
	if c.Status == metav1.ConditionTrue || failed != nil && c.Reason == failed.Reason || c.Reason == podWaits || c.Reason == stillStaged && len(v.Stages) == 0 {
		return ""
	}
	return c.Message
}

// deletionFailing is about a record whose deletion pods fail.
func (s *story) deletionFailing(v *volumeView) {
	r := v.Record
	link := s.links[len(s.links)-1]
	link.failedWith(r.Status.LastError)
	failed := fmt.Sprintf("its storage could not be removed: %s", r.Status.LastError.Message)
	if r.Status.NextDeletionTime == nil {
		s.blame("attempt %d is under way", r.Status.DeletionAttempts)
		s.stepPod(v)
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
	s.stepPod(v)
	if p := v.Step; p == nil || p.Pod.DeletionTimestamp == nil { // else that pod must be gone first
		s.late(r.Status.NextDeletionTime.Time)
	}
}

// stepOf returns the step whose pod belongs to the record in its present phase, empty for none, and
// that pod. due says that the record waits for the pod, not for the time of the next attempt.
func stepOf(record *tarnv1.PavVolume) (step tarnv1.Step, pod Object, due bool) {
	status := &record.Status
	attempt := status.Attempts
	switch e, expansion := status.LastError, status.Expansion; {
	case status.Phase == tarnv1.VolumeValidating:
		step, due = tarnv1.StepValidation, true
	case status.Phase == tarnv1.VolumeCreating:
		step, due = tarnv1.StepCreation, true
	case status.Phase == tarnv1.VolumeUndoing || status.Phase == tarnv1.VolumeDeleting:
		step, attempt, due = tarnv1.StepDeletion, status.DeletionAttempts, status.NextDeletionTime == nil
		// After a pause, the record's pod is a deletion pod.
		if status.Phase == tarnv1.VolumeUndoing && due && conditionIn(status.Conditions, tarnv1.ConditionDeletable).Reason == podRuns {
			step, attempt, due = tarnv1.StepCreation, status.Attempts, false
		}
	case status.PodNamespace == "": // no pod was ever created
		return "", Object{}, false
	case status.Phase == tarnv1.VolumeCreated:
		if expansion == nil || expansion.TargetCapacity == 0 {
			return "", Object{}, false
		}
		step, attempt, due = tarnv1.StepExpansion, expansion.Attempts, expansion.NextAttemptTime == nil
	case e == nil || e.Step == tarnv1.StepDeletion:
		return "", Object{}, false
	default:
		step = e.Step
	}
	return step, Object{Pod, status.PodNamespace, steppod.PodName(step, record.Spec.Claim.UID, attempt)}, due
}

// stepPod adds the pod of a record's step, and reports what blocks it.
func (s *story) stepPod(v *volumeView) {
	r := v.Record
	step, pod, due := stepOf(r)
	if v.Step == nil && len(v.Backing) > 0 {
		s.backing(v)
		return
	}
	if v.Step == nil {
		if due && (step != tarnv1.StepDeletion || keptFrom(v) == "") {
			s.missingPod(pod, "", "when tarn controller starts it", true, writtenAt(r))
		}
		return
	}
	before, at := s.cause, len(s.links)
	s.ourPod(v.Step, step, r.Spec.Provisioner.Name, steppod.Observe(v.Step.Pod, r.UID, s.view.Now))
	if s.cause != before { // the pod is nearer to the cause, and a new attempt would meet it again
		for _, l := range s.links[:at] {
			l.Command = ""
		}
	}
	if due {
		s.lateAfter(v.Step.Pod, r.UID)
	}
	s.backing(v)
}

// backing follows the claims that were made for a volume and that are not ready: its pods mount
// them.
func (s *story) backing(v *volumeView) {
	var parts []*story
	for _, c := range v.Backing {
		part := s.part(c.Object.Name)
		part.ofClaim(c)
		if part.cause != "" {
			part.cause = fmt.Sprintf("%s, over which the volume lies: %s", c.Object, part.cause)
		}
		parts = append(parts, part)
	}
	at := len(s.links)
	if s.weigh(parts...) != nil { // nearer to the cause than the pod that mounts them
		for _, l := range s.links[:at] {
			l.Command = ""
		}
	}
}

// ourPod adds a step pod, and reports how far it is, what keeps it from ending, and when it is
// given up. o is what the controller observes.
func (s *story) ourPod(p *podView, step tarnv1.Step, provisioner string, o steppod.Observation) {
	link, t := s.podLink(p)
	what := fmt.Sprintf("the %s pod %s", step, link.Object.fullName())
	deadline := ""
	if !o.CheckAt.IsZero() {
		deadline = "it times out " + when(&metav1.Time{Time: o.CheckAt}, s.view.Now)
	}
	switch {
	case o.State == steppod.PodForeign:
		link.Message, link.Next = o.Message, "when that pod is gone; its owner has to delete it"
		s.blame("a pod that is not Tarn's has the name of the %s pod", step)
	case o.State == steppod.PodGoing && volume.ShutDown(p.Pod) && len(p.Pod.Finalizers) > 0: // its node is done with it
		s.cause = ""
		s.keepers(link.Object, "pod", p.Pod, "", true)
		s.cause = fmt.Sprintf("%s is being deleted: %s", what, s.cause)
	case o.State == steppod.PodGoing:
		link.Message, link.Next = cmp.Or(o.Message, link.Message, endsBy(p.Pod)), "when the pod is gone"
		if o.Message != "" {
			s.blame("%s cannot be deleted: node %s does not respond", what, p.Pod.Spec.NodeName)
		} else if how := s.nodeDown(p); how != "" {
			s.blame("%s is being deleted, but its node %s %s", what, p.Pod.Spec.NodeName, how)
		}
	case o.State == steppod.PodSettling:
		link.State, link.Next = "ended", "when the node agent on "+p.Pod.Spec.NodeName+" has read what it left in /pav"
		s.blame("%s has ended, and the node agent on %s has not read what it left in /pav", what, p.Pod.Spec.NodeName)
	case o.State == steppod.PodFailed:
		link.State, link.Message = "failed", o.Message
		if o.Result != nil && o.Result.Error != "" {
			link.Message = "/pav/error: " + o.Result.Error
		}
	case o.State == steppod.PodSucceeded:
	case t.stuck():
		link.Next = cmp.Or(deadline, "when that problem is fixed")
		link.Command = kubectl("", "edit", "pavprovisioner", provisioner) + " && " + kubectl(p.Pod.Namespace, "delete", "pod", p.Pod.Name)
		s.blame("%s %s", what, keptBy(t))
		link.lacksSecret(t.Message, p.Pod, nil)
	default:
		s.ourPodUnderWay(p, link, t, what, deadline)
	}
}

// ourPodUnderWay says how far a step pod is that runs or starts.
func (s *story) ourPodUnderWay(p *podView, link *Link, t trouble, what, deadline string) {
	if how := s.nodeDown(p); how != "" {
		s.blame("%s is on node %s, which %s", what, p.Pod.Spec.NodeName, how)
		return
	}
	if t.State == "running" {
		link.Next = strings.TrimSuffix("when it ends; "+deadline, "; ")
		s.awaits("%s has been running for %s", what, s.ago(t.Since))
		return
	}
	if t.State == string(corev1.PodRunning) { // the phase is behind its containers
		link.State, link.Next = "ended", "when the kubelet has reported how it ended"
		s.awaits("%s has ended, and the kubelet has not reported how", what)
		return
	}
	link.Next = "when its containers start"
	s.awaits("%s is starting", what)
	if e := p.startFailure(); e != nil {
		s.blame("%s does not start: %s", what, e.Message)
	}
	if e := newest(p.Events, slices.Concat(mountReasons, startReasons)...); e != nil {
		link.Reason, link.Message = e.Reason, e.Message
		link.lacksSecret(e.Message, p.Pod, nil)
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
	return s.nodeSilent(p.Node)
}

// nodeSilent adds a node if it is not ready, and words that. It is empty otherwise.
func (s *story) nodeSilent(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			s.add(Link{Object: Object{Kind: node, Name: n.Name}, State: "not ready", Since: moment(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message, Next: "when its kubelet responds again"})
			return "is not ready"
		}
	}
	return ""
}

// lastTry words when an Event was last seen.
func (s *story) lastTry(e *corev1.Event) string {
	return fmt.Sprintf("last tried %s ago", s.ago(LastSeen(e).Truncate(time.Second)))
}
