package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// mountReasons are the reasons of a kubelet's Events for volumes that it cannot mount for a pod.
var mountReasons = []string{"FailedMount", "FailedMapVolume", "FailedAttachVolume"}

// startReasons are the reasons of its Events for what it does after the pod has its volumes.
var startReasons = []string{noSandbox, "Pulling", "Pulled", "Created", "Started"}

// noSandbox is the reason of its Event when it cannot create the pod's sandbox, which the
// containers share.
const noSandbox = "FailedCreatePodSandBox"

// onNode finds why the node does not mount a pod's volumes.
func (s *story) onNode(p *podView, claims []*claimView) {
	pod := p.Pod
	if pod.Spec.NodeName == "" || hasEnded(pod) {
		return
	}
	if how := s.nodeDown(p); how != "" {
		s.blame("its node %s %s", pod.Spec.NodeName, how)
		return
	}
	if isTrue(pod, corev1.PodReadyToStartContainers) || isReady(pod) || runsNow(pod) {
		return // it has its volumes; a loss is reported with the claim
	}
	var parts []*story
	for _, c := range claims {
		if c.Volume != nil && c.Volume.Volume != nil {
			parts = append(parts, s.staging(p, c))
		}
	}
	if of := s.weigh(parts...); of != nil {
		if e := p.mountFailure(); e != nil && of.ends {
			s.links[0].Reason, s.links[0].Message = e.Reason, e.Message
		}
		return
	}
	if e := p.mountFailure(); e != nil && !ofGrowth(e, pod, claims) {
		s.links[0].Reason, s.links[0].Message = e.Reason, e.Message
		s.links[0].Next = "when the kubelet retries, " + growingPause + "; " + s.lastTry(e)
		s.blame("the kubelet on node %s cannot mount its volumes: %s", pod.Spec.NodeName, e.Message)
	}
}

// mountFailure returns the kubelet's last Event if that says that it cannot mount the pod's
// volumes; nil if the kubelet has got further since.
func (p *podView) mountFailure() *corev1.Event {
	e := newest(p.Events, slices.Concat(mountReasons, startReasons)...)
	if e == nil || slices.Contains(startReasons, e.Reason) {
		return nil
	}
	return e
}

// ofGrowth says whether an Event is about a volume that the kubelet must expand before it can mount
// it. The state of the expansion tells more than the Event.
func ofGrowth(e *corev1.Event, pod *corev1.Pod, claims []*claimView) bool {
	return slices.ContainsFunc(claims, func(c *claimView) bool {
		return c.Claim != nil && c.Volume != nil && growsFirst(pod, c.Claim) && names(e, c.Volume.Name)
	})
}

// startFailure returns mountFailure, or the Event that the kubelet cannot create the pod's sandbox.
func (p *podView) startFailure() *corev1.Event {
	if e := newest(p.Events, slices.Concat(mountReasons, startReasons)...); e != nil && e.Reason == noSandbox {
		return e
	}
	return p.mountFailure()
}

// staging finds why a claim's volume is not available on the pod's node.
func (s *story) staging(p *podView, c *claimView) *story {
	v, on, part := c.Volume, p.Pod.Spec.NodeName, s.part(c.Object.Name)
	if v.Provisioner == nil {
		part.otherDriver(p, v)
		return part
	}
	e := mountEvent(p, v)
	if of := part.weigh(part.unsettled(v, on)...); of != nil {
		if part.ends = of.ends; !of.ends {
			part.afterFailedStage(v, on, e)
		}
		return part
	}
	part.withoutStage(p, v, e)
	return part
}

// afterFailedStage adds a kubelet's older Event to the cause, in front of the state of the stage.
// It is the error of the previous attempt, which likely tells more.
func (s *story) afterFailedStage(v *volumeView, on string, e *corev1.Event) {
	if e == nil || !names(e, v.Name) || unanswered(e) {
		return
	}
	for i := range v.Stages {
		g := &v.Stages[i]
		ended := g.Stage.DeletionTimestamp != nil || g.Stage.Status.Pod.Phase == tarnv1.StagePodFailed
		if g.Stage.Spec.NodeName != on || ended || staged(g) || lost(g) || LastSeen(e).After(g.Stage.CreationTimestamp.Time) {
			continue
		}
		standing := strings.TrimPrefix(s.cause, fmt.Sprintf("volume %s is not staged on node %s: ", v.Name, on))
		s.blame("volume %s could not be staged on node %s: %s; now %s", v.Name, on, mountError(e.Message), standing)
		s.namesSecret(v)
		return
	}
}

// madeForAClaim says whether a volume was created for a claim, by the rule of the controller that
// stages it. The volume's annotation alone is trusted only if its record could not be read.
func (s *story) madeForAClaim(v *volumeView) bool {
	switch uid := v.Volume.Annotations[tarnv1.AnnotationRecord]; {
	case uid == "":
		return false
	case v.Volume.Annotations[tarnv1.AnnotationKept] == string(v.Volume.UID), s.view.unknown(pavVolume, "", v.Name):
		return true
	default:
		return v.Record != nil && string(v.Record.UID) == uid
	}
}

// withoutStage is about a volume without a stage on the node of a pod that waits for it.
func (s *story) withoutStage(p *podView, v *volumeView, e *corev1.Event) {
	on, name := p.Pod.Spec.NodeName, v.Provisioner.Name
	for _, g := range v.Stages {
		if g.Stage.Spec.NodeName == on && g.Stage.DeletionTimestamp == nil {
			return // it is staged; the kubelet has yet to mount it
		}
	}
	if s.provisionerUnusable(v.Provisioner, false) {
		return
	}
	if byHand := !s.madeForAClaim(v); byHand && !slices.Contains(v.Provisioner.Spec.ProvisioningModes, pavv1.ModeStatic) {
		what, as := "was written by hand", ""
		if v.Volume.Annotations[tarnv1.AnnotationRecord] != "" { // it was made, and restored from a backup
			what, as = "counts as written by hand, as it has no PavVolume", ", and one without its PavVolume counts as such"
		}
		s.add(Link{Object: Object{Kind: pavProvisioner, Name: name}, State: "not Static", Message: "the volume " + what + ", and spec.provisioningModes does not contain Static", Next: "when it has",
			Command: kubectl("", "patch", "pavprovisioner", name, "--type=json", "-p", `[{"op":"add","path":"/spec/provisioningModes/-","value":"Static"}]`)})
		s.blame("PavProvisioner %s stages no volumes written by hand%s: spec.provisioningModes does not contain Static", name, as)
		return
	}
	if !slices.Contains(p.Drivers, name) && !s.view.unknown(csiNode, "", on) {
		link := s.add(Link{Object: Object{Kind: csiNode, Name: on}, State: "driver not registered", Message: fmt.Sprintf(
			"the kubelet there knows the drivers %q; Tarn's node agent registers %s when it runs", p.Drivers, name), Next: "when the node agent runs on " + on})
		link.Command = kubectl("tarn-system", "get", "pods", "-o", "wide", "--field-selector", "spec.nodeName="+on)
		s.blame("driver %s is not registered on node %s: Tarn's node agent does not run there", name, on)
		return
	}
	if e != nil {
		link := s.add(Link{Object: Object{Kind: event, Namespace: e.Namespace, Name: e.Name}, State: e.Reason, Since: moment(LastSeen(e)), Node: on, Reason: e.Reason, Message: e.Message,
			Next: "when the kubelet retries, " + growingPause + "; " + s.lastTry(e)})
		link.Command = tryAgain(p.Pod)
		if unanswered(e) {
			s.blame("Tarn's node agent on node %s does not respond", on)
			return
		}
		if failedStage(e) {
			link.failedStaging(e.Message, link.Next, name)
		}
		s.blame("volume %s cannot be staged on node %s: %s", v.Name, on, mountError(e.Message))
		if !link.lacksSecret(e.Message, p.Pod, keysRead(v.Provisioner)) {
			s.namesSecret(v)
		}
		return
	}
	if s.view.unknown(pavStage, "", "") {
		return // it may be staged; the pod's link reports what else is known
	}
	since := p.Pod.CreationTimestamp.Time
	if c := conditionOf(p.Pod, corev1.PodScheduled); c != nil {
		since = c.LastTransitionTime.Time
	}
	if s.young(since) {
		s.awaits("volume %s is about to be staged on node %s", v.Name, on)
		return
	}
	s.add(Link{Object: Object{Kind: pavStage, Name: tarnv1.StageName(v.Volume.UID, on, volume.OnlyRead(v.Volume))}, State: "missing", Node: on, Next: "when the node agent responds",
		Message: "the driver is registered, but staging has not started: the kubelet has not requested it, or Tarn's node agent does not respond"})
	s.blame("Tarn's node agent on node %s does not respond", on)
}

// unanswered says whether the kubelet could not reach the driver, or its call timed out. A running
// node agent answers within the kubelet's two minutes, whatever it waits for itself.
func unanswered(e *corev1.Event) bool {
	return strings.Contains(e.Message, "code = Unavailable desc = connection error:") || strings.Contains(e.Message, "code = DeadlineExceeded desc = ")
}

// failedStage says whether the driver answered that the stage has failed. Then the provisioner must
// be corrected; a new pod of the user's would meet the same error.
func failedStage(e *corev1.Event) bool {
	return strings.Contains(e.Message, "code = Internal desc = ")
}

// tryAgain returns the command that makes the kubelet retry at once. It replaces the pod, because
// the kubelet has no backoff for a new one. A pod without a controller is created again as it is.
// The command is empty for a pod that has run and has ephemeral claims: their data would be lost.
func tryAgain(pod *corev1.Pod) string {
	if volume.Started(pod) && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil }) {
		return ""
	}
	if metav1.GetControllerOf(pod) != nil {
		return kubectl(pod.Namespace, "delete", "pod", pod.Name)
	}
	return kubectl(pod.Namespace, "get", "pod", pod.Name, "-o", "yaml") + " | kubectl replace --force -f -"
}

// mountError returns the driver's part of the kubelet's message.
func mountError(message string) string {
	if _, after, found := strings.Cut(message, " desc = "); found {
		return after
	}
	return message
}

// mountEvent returns the kubelet's newest Event about a volume that it cannot mount for a pod, nil
// for none. An Event that names another volume does not count.
func mountEvent(p *podView, v *volumeView) *corev1.Event {
	for i := len(p.Events) - 1; i >= 0 && !slices.Contains(startReasons, p.Events[i].Reason); i-- {
		e := &p.Events[i]
		if slices.Contains(mountReasons, e.Reason) && (names(e, v.Name) || !strings.Contains(e.Message, " for volume \"")) {
			return e
		}
	}
	return nil
}

// names says whether an Event of the kubelet names a volume.
func names(e *corev1.Event, vol string) bool {
	return strings.Contains(e.Message, fmt.Sprintf("%q", vol))
}

// otherDriver is about a volume that Tarn does not stage.
func (s *story) otherDriver(p *podView, v *volumeView) {
	csi := v.Volume.Spec.CSI
	on := p.Pod.Spec.NodeName
	if csi == nil || slices.Contains(p.Drivers, csi.Driver) || s.view.unknown(csiNode, "", on) || s.view.unknown(pavProvisioner, "", csi.Driver) {
		return
	}
	s.add(Link{Object: Object{Kind: csiNode, Name: on}, State: "driver not registered", Message: fmt.Sprintf("the kubelet there knows the drivers %q", p.Drivers), Next: "when the driver's pod runs on " + on})
	if strings.ContainsAny(csi.Driver, "./") {
		s.blame("driver %s is not registered on node %s", csi.Driver, on)
		return
	}
	s.blame("PavProvisioner %s no longer exists, and node %s has no other driver of that name", csi.Driver, on)
}
