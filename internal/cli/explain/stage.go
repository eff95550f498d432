package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// stages reports where a volume is staged, and where it was lost. It reports what blocks staging or
// unstaging only for a claim or a volume. For a pod, onNode does that after the claims, and only
// stages on the node of the pod count.
func (s *story) stages(v *volumeView, users []user) []*story {
	var parts []*story
	on := ""
	if s.view.Pod != nil {
		on = s.view.Pod.Pod.Spec.NodeName
	}
	for i := range v.Stages {
		g, part := &v.Stages[i], s.part(v.Stages[i].Stage.Spec.NodeName)
		if on != "" && g.Stage.Spec.NodeName != on {
			continue
		}
		if staged(g) {
			s.fine += "; staged on node " + g.Stage.Spec.NodeName
		}
		if lost(g) {
			part.lostStage(g)
		} else if !staged(g) || !part.notYetEvicted(g) && !part.keepsLost(g, users) {
			continue
		}
		part.rank = rankLost
		parts = append(parts, part)
	}
	if s.view.Asked.Kind == Claim || s.view.Asked.Kind == Volume {
		parts = append(parts, s.unsettled(v, on)...)
	}
	return parts
}

// unsettled reports what blocks the staging or unstaging of a volume, on a node or on all if on is
// empty.
func (s *story) unsettled(v *volumeView, on string) []*story {
	var parts []*story
	for i := range v.Stages {
		g := &v.Stages[i]
		part := s.part(g.Stage.Spec.NodeName + "/" + g.Stage.Name)
		switch {
		case on != "" && g.Stage.Spec.NodeName != on, lost(g), staged(g):
			continue
		case g.Stage.DeletionTimestamp != nil || g.Stage.Status.Node.Phase == tarnv1.StageFailed:
			part.ends = true
			part.endingStage(g)
		case v.Provisioner != nil:
			part.stagingPod(g, v.Provisioner)
		}
		if g.Stage.Status.Pod.Phase == tarnv1.StagePodFailed || g.Stage.Status.Node.Phase == tarnv1.StageFailed {
			part.namesSecret(v)
		}
		parts = append(parts, part)
	}
	return parts
}

// lost says whether a stage was lost under the pods that use it, and is not being deleted.
func lost(g *stageView) bool {
	return g.Stage.DeletionTimestamp == nil && g.Stage.Status.Node.Phase == tarnv1.StageLost && g.Stage.Status.Node.Loss != nil
}

// staged says whether a stage makes its volume available, and is not being deleted.
func staged(g *stageView) bool {
	return g.Stage.DeletionTimestamp == nil && g.Stage.Status.Node.Phase == tarnv1.StageStaged
}

// stageLink adds the link of a stage, with the message of the node agent or the controller.
func (s *story) stageLink(g *stageView) *Link {
	stage := g.Stage
	link := s.add(Link{Object: Object{Kind: pavStage, Name: stage.Name}, State: cmp.Or(string(stage.Status.Node.Phase), "new"), Node: stage.Spec.NodeName,
		Since: moment(stage.CreationTimestamp.Time), Message: cmp.Or(stage.Status.Node.Message, stage.Status.Pod.Message)})
	if stage.DeletionTimestamp != nil {
		link.State, link.Since = "ending", moment(stage.DeletionTimestamp.Time)
	}
	return link
}

// growingPause words the kubelet's backoff before it repeats a failed request.
const growingPause = "with backoff of at most about two minutes"

// failedStaging says what a failed stage waits for: its provisioner must be corrected. If another
// volume with the same handle is staged, that one must first be unstaged, and no command helps.
func (l *Link) failedStaging(message, next, provisioner string) {
	l.Next, l.Command = next, kubectl("", "edit", "pavprovisioner", provisioner)
	if strings.Contains(message, tarnv1.StageShared) {
		l.Next, l.Command = "when the pods that use the other volume have ended and it is unstaged, and then "+next, ""
	}
}

// stagingPod is about a stage that is not Staged yet.
func (s *story) stagingPod(g *stageView, p *pavv1.PavProvisioner) {
	stage, status := g.Stage, g.Stage.Status.Pod
	if stage.Status.Node.Phase == tarnv1.StageLost {
		s.lostStage(g)
		return
	}
	link, name, on := s.stageLink(g), stage.Spec.VolumeName, stage.Spec.NodeName
	what := fmt.Sprintf("volume %s is not staged on node %s", name, on)
	unbegun, ahead := status.Phase == "", stage.Awaited() && stage.Status.Node.Phase == ""
	switch {
	case status.Phase == tarnv1.StagePodFailed:
		link.failedStaging(status.Message, "when the kubelet retries, "+growingPause, p.Name)
		s.blame("%s: %s", what, status.Message)
	case ahead && s.young(stage.CreationTimestamp.Time):
		link.Next = "when the node agent responds"
		s.awaits("volume %s is about to be staged on node %s", name, on)
		return
	case ahead:
		link.Next = "when the node agent responds"
		s.blame("Tarn's node agent on node %s does not respond", on)
		return
	case unbegun && strings.HasPrefix(status.Message, tarnv1.StageWaits):
		link.Next = "when that stage has ended, or its kubelet has requested it"
		s.awaits("%s: %s", what, status.Message)
		return
	case unbegun && status.Message != "" && s.provisionerUnusable(p, false):
		link.Next = "when the PavProvisioner has been validated"
		s.blame("%s: %s", what, s.cause)
		return
	case unbegun:
		s.controllerSilent(what+", its pod has to be started", latest(stage, p))
		return
	case status.Phase == tarnv1.StagePodSucceeded:
		link.Next = "when Tarn's node agent has read /pav/volume"
		if s.young(endOfStaging(g)) {
			s.awaits("%s: its pod has ended, and the node agent is about to read /pav/volume", what)
		} else {
			s.blame("%s: its pod has ended, and the node agent does not respond", what)
		}
		return
	case status.Phase == tarnv1.StagePodValidating: // written by hand
		s.awaits("%s: it is being validated first", what)
	default:
		s.awaits("%s: its staging pod has not created /pav/volume yet", what)
	}
	s.podOfStage(g, what, p.Name)
}

// podOfStage reports the pod that makes a volume available, or that validates it first.
func (s *story) podOfStage(g *stageView, what, provisioner string) {
	stage, status, step := g.Stage, g.Stage.Status.Pod, tarnv1.StepStaging
	if status.Phase == tarnv1.StagePodValidating {
		step = tarnv1.StepValidation
	}
	awaited := status.Phase != tarnv1.StagePodFailed && status.Phase != ""
	if g.Pod == nil {
		s.missingPod(Object{Pod, status.Namespace, status.Name}, stage.Spec.NodeName, "", awaited, writtenAt(stage))
		return
	}
	before := s.cause
	s.ourPod(g.Pod, step, provisioner, steppod.Observe(g.Pod.Pod, stage.UID, s.view.Now))
	if s.cause != before {
		s.cause = what + ": " + s.cause
	}
	if awaited {
		s.lateAfter(g.Pod.Pod, stage.UID)
	}
	if step == tarnv1.StepValidation {
		return
	}
	if running := s.links[len(s.links)-1]; running.State == "running" {
		running.Next = "when it creates /pav/volume and ends, or creates /pav/ready"
		s.awaits("%s: its staging pod %s has been running for %s and has not made the volume available", what, running.Object.fullName(), s.ago(*running.Since))
	}
}

// endOfStaging returns when the pod of a stage ended, or when the stage was last written if that is
// later.
func endOfStaging(g *stageView) time.Time {
	end := writtenAt(g.Stage)
	if g.Pod == nil {
		return end
	}
	for _, c := range statuses(g.Pod.Pod) {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	return end
}

// lostStage is about a volume that was lost under the pods that use it.
func (s *story) lostStage(g *stageView) {
	stage, lost := g.Stage, g.Stage.Status.Node.Loss
	link := s.stageLink(g)
	if lost == nil {
		return
	}
	link.Since, link.Reason, link.Message = moment(lost.Time.Time), lost.Reason, lost.Message
	s.blame("volume %s is lost on node %s: %s", stage.Spec.VolumeName, stage.Spec.NodeName, lost.Message)
	if stage.Status.Pod.Recovery == tarnv1.RecoveryNone {
		link.Next = "when the pods that use it are restarted, as volumeStaging.recovery is None"
	} else {
		link.Next = "when its next staging pod has made it available again"
		if stage.Status.Pod.Recovery == tarnv1.RecoveryRestartConsumers {
			link.Next += "; then Tarn evicts the pods that use it, if a controller creates them again"
		}
		if lost.Failed > 0 && stage.Status.Node.Message != "" {
			s.blame("%s; staging it again failed, attempt %d: %s", s.cause, lost.Failed, stage.Status.Node.Message)
		}
	}
	if message := cmp.Or(stage.Status.Node.Message, stage.Status.Pod.Message); message != "" {
		link.Message += "; " + message
	}
	if g.Pod != nil {
		s.podLink(g.Pod)
	}
}

// mended says whether a volume was lost on a node and is available again.
func mended(g stageView) bool {
	lost := g.Stage.Status.Node.Loss
	return staged(&g) && lost != nil && lost.ReboundTime != nil
}

// notYetEvicted is about a volume that was lost and is available again, but not for a pod that is
// yet to be evicted. A disruption budget may delay that. If the user asked for a pod, only that pod
// counts. It returns false if there is no such pod.
func (s *story) notYetEvicted(g *stageView) bool {
	for _, e := range g.Stage.Status.Pod.Evictions {
		if p := s.view.Pod; p != nil && p.Pod.UID != e.PodUID {
			continue
		}
		link := s.stageLink(g)
		link.Next = "when it is evicted, which Tarn retries, or when you delete it"
		s.blame("volume %s was lost on node %s and is available again, but not for %s, which is to be evicted", g.Stage.Spec.VolumeName, g.Stage.Spec.NodeName, Object{Pod, e.Namespace, e.Name})
		if e.Message != "" {
			link.Message = e.Message
			s.blame("%s and cannot be: %s", s.cause, e.Message)
		}
		return true
	}
	return false
}

// keepsLost is about a volume that was lost and is available again, but not for some container.
// That container has run since before the loss, or the kubelet keeps a subPath of the lost mount,
// with which it cannot start. If the user asked for a pod, only that pod counts. It returns false
// if there is no such container.
func (s *story) keepsLost(g *stageView, users []user) bool {
	if !mended(*g) {
		return false
	}
	for _, u := range users {
		if asked := s.view.Pod; asked != nil && asked.Pod.UID != u.Pod.UID || u.Pod.DeletionTimestamp != nil || hasEnded(u.Pod) {
			continue
		}
		containers, why, next := leftLost(g.Stage, u.Pod)
		if len(containers) == 0 {
			continue
		}
		but := "not for container %s of %s, which keeps the lost mount"
		if next == whenReplaced {
			but = "container %s of %s cannot restart with its subPath"
		}
		link := s.stageLink(g)
		link.Since, link.Message = moment(g.Stage.Status.Node.Loss.ReboundTime.Time), why
		link.Next, link.Command, link.offer = next, tryAgain(u.Pod), "the command replaces the pod"
		s.blame("volume %s was lost on node %s and is available again, but %s: %s", g.Stage.Spec.VolumeName, g.Stage.Spec.NodeName,
			fmt.Sprintf(but, join(containers), Object{Pod, u.Pod.Namespace, u.Pod.Name}), why)
		return true
	}
	return false
}

const whenReplaced = "when the pod is replaced"

// leftLost returns the containers of a pod that keep the lost mount, why, and until when. A subPath
// comes first. With recovery RestartConsumers no mount is replaced, and Tarn does not evict a pod
// that no controller would create again.
func leftLost(stage *tarnv1.PavStage, pod *corev1.Pod) (containers []string, why, next string) {
	since := stage.Status.Node.Loss.ReboundTime.Time
	path, why := "", ""
	for _, l := range stage.Status.Node.Loss.Left {
		switch {
		case l.PodUID != pod.UID:
		case l.Container == "":
			path, why = l.Path, "its mount could not be replaced: "+l.Message
		case !slices.ContainsFunc(statuses(pod), func(c corev1.ContainerStatus) bool {
			return c.Name == l.Container && c.State.Running != nil && c.State.Running.StartedAt.After(since)
		}):
			return []string{l.Container}, l.Message, whenReplaced
		}
	}
	if stage.Status.Pod.Recovery == tarnv1.RecoveryRestartConsumers {
		path, why = "", ""
		if metav1.GetControllerOf(pod) == nil && slices.ContainsFunc(stage.Status.Node.Targets, func(target string) bool { return tarnv1.PodOfTarget(target) == pod.UID }) {
			why = "no controller would create the pod again, so Tarn does not evict it"
		}
	}
	if why == "" {
		return nil, "", ""
	}
	var there []string // those that mount something at the recorded path
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if len(c.VolumeMounts)+len(c.VolumeDevices) == 0 || !slices.ContainsFunc(statuses(pod), func(status corev1.ContainerStatus) bool {
			return status.Name == c.Name && status.State.Running != nil && !status.State.Running.StartedAt.After(since)
		}) {
			continue
		}
		containers = append(containers, c.Name)
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.TrimSuffix(m.MountPath, "/") == path }) {
			there = append(there, c.Name)
		}
	}
	if len(there) > 0 { // none if the image has links in the path
		containers = there
	}
	return containers, why, "when that container restarts"
}

// endingStage is about a stage that must end before its volume can be staged again, or destroyed.
func (s *story) endingStage(g *stageView) {
	stage, status, name, on := g.Stage, g.Stage.Status.Pod, g.Stage.Spec.VolumeName, g.Stage.Spec.NodeName
	link := s.stageLink(g)
	passes := s.awaits
	what := fmt.Sprintf("volume %s is being unstaged on node %s", name, on)
	link.Next = "when its pod has ended and the node has unmounted it"
	switch who := stage.Spec.AheadFor; {
	case stage.Status.Node.Phase == tarnv1.StageFailed:
		what, passes = fmt.Sprintf("volume %s could not be staged on node %s: %s", name, on, stage.Status.Node.Message), s.blame
		link.failedStaging(stage.Status.Node.Message, "when the kubelet retries, "+growingPause, stage.Spec.Provisioner.Name)
	case stage.DeletionTimestamp == nil && stage.Awaited():
		what, link.Message = fmt.Sprintf("volume %s is staged ahead on node %s", name, on), fmt.Sprintf("started ahead for pod %s/%s", who.Namespace, who.Name)
		link.Next = "when its kubelet has mounted and unmounted it, or when that pod is gone"
	case stage.DeletionTimestamp == nil:
		what, link.Message = fmt.Sprintf("volume %s is still staged on node %s", name, on), fmt.Sprintf("used by %d pods there", len(stage.Status.Node.Targets))
		link.Next = "when the kubelet has unmounted it from the last pod that uses it"
	}
	passes("%s", what)
	if status.Phase == tarnv1.StagePodUnstaging {
		link.Message = status.Message
		if status.NextAttemptTime != nil {
			link.Next = fmt.Sprintf("unstaging attempt %d %s", status.UnstageAttempts+1, when(status.NextAttemptTime, s.view.Now))
			s.blame("volume %s cannot be unstaged on node %s, attempt %d: %s", name, on, status.UnstageAttempts, status.Message)
		}
	} else if heldBack(stage) {
		link.Message, link.Next = status.Message, "when the pods that run on it have ended"
		s.awaits("%s, which waits: %s", what, status.Message)
	}
	if g.Pod != nil && g.Pod.Pod.Status.Phase != corev1.PodSucceeded {
		s.podLink(g.Pod)
	}
	switch { // Tarn's controller must act next, if at all
	case status.Phase != tarnv1.StagePodUnstaging:
	case g.Pod != nil && g.Pod.Pod.DeletionTimestamp != nil: // that pod must be gone first
	case status.NextAttemptTime != nil:
		s.late(status.NextAttemptTime.Time)
	case g.Pod != nil:
		s.lateAfter(g.Pod.Pod, stage.UID)
	default:
		s.missingPod(Object{Pod, status.Namespace, status.Name}, on, "", true, writtenAt(stage))
	}
}

// heldBack says whether a stage is being deleted while its volume is still mounted. The volume
// stays mounted until its consumers end. status.Message says what the stage waits for.
func heldBack(stage *tarnv1.PavStage) bool {
	status, node := stage.Status.Pod, stage.Status.Node.Phase
	ends := status.Phase == tarnv1.StagePodStopped || status.Phase == tarnv1.StagePodUnstaging || status.Phase == tarnv1.StagePodUnstaged
	return stage.DeletionTimestamp != nil && !ends && status.Message != "" && (node == tarnv1.StageStaged || node == tarnv1.StageLost)
}
