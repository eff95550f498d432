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

// mountReasons are the Events by which a kubelet says that it cannot give a pod its
// volumes.
var mountReasons = []string{"FailedMount", "FailedMapVolume", "FailedAttachVolume"}

// startReasons are those by which it tells of what it does when the pod has its volumes.
var startReasons = []string{noSandbox, "Pulling", "Pulled", "Created", "Started"}

// noSandbox is the reason by which it says that it cannot make what the containers share.
const noSandbox = "FailedCreatePodSandBox"

// onNode finds out why the node does not give a pod its volumes.
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
		return // it has its volumes; a loss was told with the claim
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

// mountFailure is what the kubelet has said last, where that is that it cannot give the pod
// its volumes; nil where it has come further since.
func (p *podView) mountFailure() *corev1.Event {
	e := newest(p.Events, slices.Concat(mountReasons, startReasons)...)
	if e == nil || slices.Contains(startReasons, e.Reason) {
		return nil
	}
	return e
}

// ofGrowth says that a kubelet could not give a pod a volume which it has to grow first: the growing
// itself tells more.
func ofGrowth(e *corev1.Event, pod *corev1.Pod, claims []*claimView) bool {
	return slices.ContainsFunc(claims, func(c *claimView) bool {
		return c.Claim != nil && c.Volume != nil && growsFirst(pod, c.Claim) && names(e, c.Volume.Name)
	})
}

// startFailure is mountFailure, or that the kubelet cannot make the pod's sandbox.
func (p *podView) startFailure() *corev1.Event {
	if e := newest(p.Events, slices.Concat(mountReasons, startReasons)...); e != nil && e.Reason == noSandbox {
		return e
	}
	return p.mountFailure()
}

// staging finds out why a claim's volume is not available on the pod's node.
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

// afterFailedStage puts what the kubelet has told before the stage was begun, which the
// try before has failed with, before how the stage stands: it is the likelier to tell.
func (s *story) afterFailedStage(v *volumeView, on string, e *corev1.Event) {
	if e == nil || !names(e, v.Name) || unanswered(e) {
		return
	}
	for i := range v.Stages {
		g := &v.Stages[i]
		ended := g.Stage.DeletionTimestamp != nil || g.Stage.Status.Pod.Phase == tarnv1.StagePodFailed
		if g.Stage.Spec.NodeName != on || ended || staged(g) || lost(g) || lastSeen(e).After(g.Stage.CreationTimestamp.Time) {
			continue
		}
		standing := strings.TrimPrefix(s.cause, fmt.Sprintf("volume %s is not staged on node %s: ", v.Name, on))
		s.blame("volume %s could not be staged on node %s: %s; now %s", v.Name, on, mountError(e.Message), standing)
		return
	}
}

// madeForAClaim says whether a volume was made for a claim, by the rule of the controller that
// stages it; that it says so by itself is enough only where its record may not be read.
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

// withoutStage is about a volume that nobody stages, though a pod waits for it.
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
		link := s.add(Link{Object: Object{Kind: event, Namespace: e.Namespace, Name: e.Name}, State: e.Reason, Since: moment(lastSeen(e)), Node: on, Reason: e.Reason, Message: e.Message,
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
		return
	}
	if s.view.unknown(pavStage, "", "") {
		return // it may be staged; what else is known is told with the pod
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

// unanswered says whether the kubelet reached no driver, or waited for its answer in vain: an
// agent that runs answers within the kubelet's two minutes, whatever it waits for itself.
func unanswered(e *corev1.Event) bool {
	return strings.Contains(e.Message, "code = Unavailable desc = connection error:") || strings.Contains(e.Message, "code = DeadlineExceeded desc = ")
}

// failedStage says whether the kubelet was answered that the stage had failed, which is for
// the provisioner to mend: another pod in the place of the user's would meet it again.
func failedStage(e *corev1.Event) bool {
	return strings.Contains(e.Message, "code = Internal desc = ")
}

// tryAgain gives the command by which the kubelet tries at once: a pod that is new has
// no pause behind it. One without a controller is made anew as it is, as no other owner
// would do that. What one that has run has in claims of its own would go with it.
func tryAgain(pod *corev1.Pod) string {
	if volume.Started(pod) && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil }) {
		return ""
	}
	if metav1.GetControllerOf(pod) != nil {
		return kubectl(pod.Namespace, "delete", "pod", pod.Name)
	}
	return kubectl(pod.Namespace, "get", "pod", pod.Name, "-o", "yaml") + " | kubectl replace --force -f -"
}

// mountError is the part of the kubelet's words that is the driver's.
func mountError(message string) string {
	if _, after, found := strings.Cut(message, " desc = "); found {
		return after
	}
	return message
}

// mountEvent is the newest Event by which the kubelet says that it cannot give a pod a
// volume, nil for none: one that names another volume, of a claim or not, is about that.
func mountEvent(p *podView, v *volumeView) *corev1.Event {
	for i := len(p.Events) - 1; i >= 0 && !slices.Contains(startReasons, p.Events[i].Reason); i-- {
		e := &p.Events[i]
		if slices.Contains(mountReasons, e.Reason) && (names(e, v.Name) || !strings.Contains(e.Message, " for volume \"")) {
			return e
		}
	}
	return nil
}

// names says whether an Event of the kubelet's is about a volume.
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
