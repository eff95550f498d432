package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/volume"
)

// ofPod finds what a pod waits for, as far as volumes are concerned.
func (s *story) ofPod(p *podView, claims []*claimView) string {
	at := len(s.links)
	link, t := s.podLink(p)
	if p.Pod.DeletionTimestamp != nil {
		link.State, link.Since = "Terminating", moment(deletedAt(p.Pod))
	}
	var parts []*story
	for _, c := range claims {
		parts = append(parts, s.claimOfPod(p, c))
	}
	s.weigh(parts...)
	if s.cause == "" {
		s.onNode(p, claims)
	}
	if s.cause == "" { // the last thing that a kubelet does before it starts containers
		s.followOther(func(part *story) bool { return part.first })
	}
	if s.cause == "" {
		s.podItself(p, s.links[at], t, claims)
	}
	return s.links[at].State
}

// claimOfPod returns the chain of a claim, with its rank for the pod.
func (s *story) claimOfPod(p *podView, c *claimView) *story {
	part := s.part(c.Object.Name)
	part.ofClaim(c)
	going := c.Claim != nil && c.Claim.DeletionTimestamp != nil
	ends := p.Pod.DeletionTimestamp != nil
	has := hasVolumes(p.Pod)
	switch {
	case part.cause == "":
		if part.doubt != "" {
			part.doubt = fmt.Sprintf("%s: %s", c.Object, part.doubt)
		}
	case hasEnded(p.Pod), ends: // the claim does not delay the end of a pod
		part.cause, part.rank = fmt.Sprintf("%s: %s", c.Object, part.cause), rankBeside
	case going && (has || !s.refused(p, c)): // nor does the pod wait for a claim that waits for the pod
		part.cause, part.rank = fmt.Sprintf("%s is being deleted, and waits for this pod: it is deleted when the pod is gone, and no other pod can start with it", c.Object), rankLeaving
	case going:
		part.cause = fmt.Sprintf("%s is being deleted, so no pod that uses it can start", c.Object)
		part.links[0].Next = "when a new claim of that name exists; this one is deleted when no pod uses it"
		for _, l := range part.links[1:] {
			if l.Command == "" {
				l.Next = ""
			}
		}
	case part.rank == rankGrowing:
		part.cause, part.rank = fmt.Sprintf("%s: %s", c.Object, part.cause), rankLarger
		part.first = growsFirst(p.Pod, c.Claim)
	default:
		part.cause = fmt.Sprintf("%s: %s", c.Object, part.cause)
	}
	if part.fine != "" {
		s.fine = strings.TrimPrefix(fmt.Sprintf("%s; %s from %s", s.fine, c.Object, part.fine), "; ")
	}
	return part
}

// refused says whether a pod without its volumes cannot get a claim that is being deleted. The
// scheduler rejects it, or the kubelet if nothing protects the claim. Tarn's node agent rejects it
// too, unless it has mounted the volume for the pod already.
func (s *story) refused(p *podView, c *claimView) bool {
	v, on := c.Volume, p.Pod.Spec.NodeName
	switch {
	case on == "", v == nil || v.Volume == nil, !slices.Contains(c.Claim.Finalizers, claimProtection):
		return true
	case v.Provisioner == nil:
		return v.Volume.Spec.CSI != nil && s.view.unknown(pavProvisioner, "", v.Volume.Spec.CSI.Driver)
	}
	return !slices.ContainsFunc(v.Stages, func(g stageView) bool {
		return g.Stage.Spec.NodeName == on && staged(&g) && slices.ContainsFunc(g.Stage.Status.Node.Targets, func(target string) bool { return isTargetOf(target, p.Pod) })
	})
}

// growsFirst says whether a kubelet must expand a claim's volume before it starts the pod. An
// expansion that is infeasible does not delay the pod.
func growsFirst(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return pod.Spec.NodeName != "" && !hasVolumes(pod)
	}
	return false
}

// hasVolumes says whether a kubelet has mounted a pod's volumes. Then it has started the pod, or
// lacks only something for its containers, such as an image.
func hasVolumes(pod *corev1.Pod) bool {
	return volume.Started(pod) || isTrue(pod, corev1.PodReadyToStartContainers)
}

// runsNow says whether a container of a pod runs.
func runsNow(pod *corev1.Pod) bool {
	return slices.ContainsFunc(statuses(pod), func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// podItself is about a pod that its volumes do not block.
func (s *story) podItself(p *podView, link *Link, t trouble, claims []*claimView) {
	pod := p.Pod
	switch {
	case pod.DeletionTimestamp != nil:
		s.endingPod(p, link, claims)
	case t.Reason == corev1.PodReasonSchedulingGated: // the scheduler does not consider it yet
		link.Next = "when its scheduling gates are removed"
		s.blame("it %s", keptBy(t))
	case t.stuck() && t.State == "not scheduled":
		link.Next = "when the scheduler finds a node; it retries after each change of a node, a volume or a claim"
		s.blame("the scheduler finds no node for it: %s", t.Message)
		s.atHome(p.Home, t.Message)
	case pod.Status.Phase == corev1.PodFailed: // it may have failed before it had its volumes
		link.Next = "never: a failed pod is not started again, but its owner may create another"
		s.blame("%s", cmp.Or(t.Message, "it has failed, and no object that explain can read says why"))
	case t.stuck():
		s.blame("its volumes are mounted, but %s", keptBy(t))
	case hasEnded(pod), isReady(pod):
		switch {
		case len(claims) == 0:
			s.fine = "it uses no claims"
		case hasEnded(pod):
			s.fine = cmp.Or(s.fine, "it has ended; it waits for nothing")
		}
		if pod.Spec.NodeName != "" && s.fine != "" {
			s.fine = "on node " + pod.Spec.NodeName + "; " + s.fine
		}
	case t.State == "running":
		link.Next = "when its readiness probe succeeds"
		s.blame("its volumes are mounted and its containers run, but are not ready")
	case pod.Spec.NodeName == "":
		s.blame("the scheduler has not placed it yet")
	case s.young(pod.CreationTimestamp.Time):
		link.Next = "within moments"
		s.awaits("its containers are about to start")
	default:
		s.notStarted(p, link)
	}
}

// atHome is about a pod that the scheduler cannot place, because it must run on the one node that
// has its volume.
func (s *story) atHome(h home, scheduler string) {
	o := Object{Kind: node, Name: h.Name}
	switch {
	case h.Name == "":
		return
	case h.Gone:
		s.add(Link{Object: o, State: "missing", Next: "when a node of that name exists and has the old one's disk; if the disk is lost, delete the claim and create it again"})
		s.blame("its volume %s is on node %s alone, which no longer exists", h.Volume, h.Name)
		return
	case h.Node != nil:
		if is := s.nodeSilent(h.Node); is != "" {
			s.blame("its volume %s is on node %s alone, which %s", h.Volume, h.Name, is)
			return
		}
		if h.Node.Spec.Unschedulable {
			s.add(Link{Object: o, State: "cordoned", Next: "when it is uncordoned", Command: "kubectl uncordon " + h.Name})
			s.blame("its volume %s is on node %s alone, which is cordoned", h.Volume, h.Name)
			return
		}
		if slices.ContainsFunc(h.Node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
			s.add(Link{Object: o, State: "out of service", Next: "when its taint is removed", Command: "kubectl taint node " + h.Name + " " + corev1.TaintNodeOutOfService + "-"})
			s.blame("its volume %s is on node %s alone, which is marked as out of service", h.Volume, h.Name)
			return
		}
	}
	s.blame("the scheduler finds no node for it, and its volume %s is on node %s alone: %s", h.Volume, h.Name, scheduler)
}

// notStarted is about a pod whose containers take long to start, though no error is reported. An
// image may be large, or a container may have a lot to do first.
func (s *story) notStarted(p *podView, link *Link) {
	e := newest(p.Events, startReasons...)
	if e == nil {
		s.blame("its containers have not started on node %s, and no object that explain can read says why", p.Pod.Spec.NodeName)
		return
	}
	link.Reason, link.Message, link.Next = e.Reason, e.Message, "when what the kubelet reported last is complete"
	if e.Reason == noSandbox {
		link.Next = "when the kubelet retries; " + s.lastTry(e)
	}
	s.blame("its containers have not started on node %s; the kubelet's last message: %s", p.Pod.Spec.NodeName, e.Message)
}

// endingPod is about a pod that is being deleted. If the pod never had a node, or the kubelet is
// done with it, only a finalizer can keep it.
func (s *story) endingPod(p *podView, link *Link, claims []*claimView) {
	if p.Pod.Spec.NodeName != "" && !volume.ShutDown(p.Pod) {
		s.onKubelet(p, link, claims)
	}
	s.keepers(link.Object, "pod", p.Pod, "", true)
}

// onKubelet says what the kubelet must still do for a pod that is being deleted.
func (s *story) onKubelet(p *podView, link *Link, claims []*claimView) {
	link.Message = endsBy(p.Pod)
	link.Next = "when its containers have ended and the kubelet has unmounted its volumes"
	s.blame("its containers have not ended")
	if stopped(p.Pod) {
		link.Next = "when the kubelet has unmounted its volumes"
		s.blame("its containers have ended, and the kubelet has not unmounted its volumes")
		s.unstaging(p, claims)
	}
	if e := newest(p.Events, "FailedKillPod"); e != nil {
		link.Reason, link.Message = e.Reason, e.Message
		s.blame("the kubelet on node %s cannot stop it: %s", p.Pod.Spec.NodeName, e.Message)
	}
}

// stopped says whether no container of a pod runs, according to the kubelet.
func stopped(pod *corev1.Pod) bool {
	for _, c := range statuses(pod) {
		if c.State.Running != nil {
			return false
		}
	}
	return hasEnded(pod) || len(pod.Status.ContainerStatuses) > 0
}

// unstaging reports the stages that a pod's node must end before the pod can be deleted.
func (s *story) unstaging(p *podView, claims []*claimView) {
	var parts []*story
	for _, c := range claims {
		if c.Volume == nil {
			continue
		}
		for _, g := range c.Volume.Stages {
			if g.Stage.Spec.NodeName == p.Pod.Spec.NodeName && g.Stage.DeletionTimestamp != nil {
				part := s.part(c.Object.Name)
				part.endingStage(&g)
				parts = append(parts, part)
			}
		}
	}
	s.weigh(parts...)
}
