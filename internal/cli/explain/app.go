package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/appplan"
	"tarn.dev/tarn/internal/volume"
)

// ofApp finds out what an App waits for, from its claims to its pods, and gives its state
// in a word.
func (s *story) ofApp(app *tarnv1.App) string {
	o := Object{App, app.Namespace, app.Name}
	pods := ptr.Deref(app.Spec.Replicas, 1)
	link := s.add(Link{Object: o, State: "not judged", Since: moment(app.CreationTimestamp.Time),
		Message: fmt.Sprintf("%d of %d pods are ready, image %s", app.Status.ReadyReplicas, pods, cmp.Or(app.Spec.Image, "(none)"))})
	deployed := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed)
	ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady)
	switch {
	case app.DeletionTimestamp != nil:
		link.State, link.Since = "Terminating", moment(app.DeletionTimestamp.Time)
		s.endingApp(app, ready)
	case app.Spec.Image == "":
		link.State, link.Next = "not deployed", "when a paas.toml is deployed to it, which the command does"
		link.Command = "tarn app deploy " + quoted(app.Name) + " --namespace " + quoted(app.Namespace) + " --file paas.toml"
		s.blame("nothing is deployed to it")
	case app.Status.ObservedGeneration != app.Generation || deployed == nil || ready == nil:
		s.controllerSilent("it has to be looked at", changedAt(app))
	case deployed.Status != metav1.ConditionTrue && deployed.Reason == tarnv1.ReasonRefused:
		link.State, link.Since, link.Reason, link.Message = "refused", moment(deployed.LastTransitionTime.Time), deployed.Reason, deployed.Message
		s.refusedApp(app, link, deployed.Message)
	case ready.Status == metav1.ConditionTrue:
		link.State, link.Since = "Ready", moment(ready.LastTransitionTime.Time)
		s.fine = link.Message
		for _, c := range s.view.Claims {
			s.claimOfApp(c) // what a claim says is newer
		}
	default:
		link.State, link.Since, link.Reason = "not Ready", moment(ready.LastTransitionTime.Time), ready.Reason
		why := appplan.Brief(ready.Message) // the log is told of the pod
		link.Message += "; " + why
		s.blame("%s", why)
		s.partsOfApp(app)
	}
	return link.State
}

// changedAt is when an App was last asked for anything: its controller writes the status
// alone.
func changedAt(app *tarnv1.App) time.Time {
	at := app.CreationTimestamp.Time
	for _, m := range app.ManagedFields {
		if m.Subresource == "" && m.Time != nil && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}

// refusedApp says what stands in the way of what an App asks for.
func (s *story) refusedApp(app *tarnv1.App, link *Link, message string) {
	link.Next = "when it asks for something else, or what stands in the way is gone"
	s.blame("what it asks for is refused: %s", message)
	for i, c := range s.view.Claims {
		name := app.Spec.Volumes[i].Name
		switch {
		case c.Claim == nil:
		case c.Claim.Labels[tarnv1.LabelApp] != app.Name || c.Claim.Labels[tarnv1.LabelAppVolume] != name:
			s.add(Link{Object: c.Object, State: "not its own", Since: moment(c.Claim.CreationTimestamp.Time),
				Message: "a claim of the name that its volume " + name + " would have is there, and not marked as the app's; the command gives it to the app, with its data",
				Command: kubectl(app.Namespace, "label", "pvc", c.Object.Name, "--overwrite", tarnv1.LabelApp+"="+app.Name, tarnv1.LabelAppVolume+"="+name)})
			return
		case ptr.Deref(app.Spec.Replicas, 1) > 1 && volume.AccessOf(c.Claim.Spec.AccessModes) == volume.AccessOf([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}):
			link.Command = "tarn app scale " + quoted(app.Name) + " 1 --namespace " + quoted(app.Namespace)
		}
	}
}

// partsOfApp follows an App that was deployed to what it waits for: its claims, then its
// Deployment, then its pods.
func (s *story) partsOfApp(app *tarnv1.App) {
	before, waits, followed := s.cause, false, false
	ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady)
	forGrowth := ready != nil && (ready.Reason == tarnv1.ReasonResizing || ready.Reason == tarnv1.ReasonResizeFailed)
	for _, c := range s.view.Claims {
		waits = s.claimOfApp(c) || waits
	}
	if d := s.view.Workload; d != nil && !waits {
		waits = s.workloadOfApp(d)
	}
	for _, p := range s.view.Pods {
		if p.Pod.DeletionTimestamp != nil && (waits || forGrowth || len(s.view.Pods) > 1) {
			continue // it gives way to another, or is not what is waited for
		}
		s.podOfApp(p, waits)
		followed = true
		break // the others wait for the like
	}
	if s.cause == before && s.grows != "" {
		s.cause, s.links = s.grows, append(s.links, s.aside...)
		return
	}
	if s.cause == before && !followed && s.cause != "" && s.view.Workload == nil && !s.view.unknown(deployment, app.Namespace, workloadPrefix+app.Name) {
		s.controllerSilent("its Deployment has to be made", changedAt(app))
	}
}

// claimOfApp tells of a claim, with its chain where that waits for something.
func (s *story) claimOfApp(c *claimView) bool {
	part := &story{view: s.view}
	part.ofClaim(c)
	s.heed(part)
	s.doubtOf(c, part)
	if part.cause == "" {
		if part.doubt != "" {
			s.aside = append(s.aside, part.links...)
		}
		if s.fine != "" && part.fine != "" {
			s.fine += fmt.Sprintf("; %s from %s", c.Object, part.fine)
		}
		return false
	}
	if part.growing { // its pods may wait for something else
		s.grows = fmt.Sprintf("%s: %s", c.Object, part.cause)
		s.doubt = cmp.Or(s.doubt, s.grows)
		s.aside = append(s.aside, part.links...)
		return false
	}
	s.links = append(s.links, part.links...)
	s.blame("%s: %s", c.Object, part.cause)
	return true
}

// replicaSetRefused is the reason of a Deployment that may not make what makes its pods.
const replicaSetRefused = "ReplicaSetCreateError"

// workloadOfApp tells of a Deployment that cannot make its pods.
func (s *story) workloadOfApp(d *appsv1.Deployment) bool {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue || c.Type == appsv1.DeploymentProgressing && c.Reason == replicaSetRefused {
			s.add(Link{Object: Object{deployment, d.Namespace, d.Name}, State: "makes no pods", Since: moment(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message,
				Next: "when its pods are allowed; it is tried again, after a growing pause"})
			s.blame("its pods cannot be made: %s", c.Message)
			return true
		}
	}
	return false
}

// podOfApp follows a pod that is not ready. Where its claims are what is waited for, that
// is told already.
func (s *story) podOfApp(p *podView, told bool) {
	o := Object{Pod, p.Pod.Namespace, p.Pod.Name}
	asked := *s.view
	asked.Asked = o
	part := &story{view: &asked}
	claims := s.view.Claims
	if told {
		claims = nil
	}
	part.ofPod(p, claims)
	s.heed(part)
	s.links = append(s.links, part.links[0])
	if told {
		part.links[0].Next = "" // it goes on when what was told does
	}
	if told || part.cause == "" || part.cause == part.grows {
		return
	}
	s.links = append(s.links, beyond(part.links[1:], claims)...)
	s.blame("%s: %s", o, part.cause)
}

// beyond leaves out the links of claims that are bound and only in the way of reading.
func beyond(links []*Link, claims []*claimView) []*Link {
	bound := map[Object]bool{}
	for _, c := range claims {
		if c.Claim != nil && c.Claim.Status.Phase == corev1.ClaimBound && c.Claim.DeletionTimestamp == nil {
			bound[c.Object] = true
			bound[Object{Volume, "", c.Claim.Spec.VolumeName}] = true
		}
	}
	var rest []*Link
	for _, l := range links {
		if !bound[l.Object] {
			rest = append(rest, l)
		}
	}
	return rest
}

// endingApp finds out what keeps an App that is to go: its pods go first, then its claims.
func (s *story) endingApp(app *tarnv1.App, ready *metav1.Condition) {
	link := s.links[0]
	link.Next = "when its pods, and then its claims but those to be preserved, are gone"
	s.blame("it is being taken down")
	if ready != nil && ready.Reason == tarnv1.ReasonDeleting && ready.Message != "" {
		link.Reason, link.Message = ready.Reason, ready.Message
		s.blame("%s", ready.Message)
	}
	held := false
	for _, p := range s.view.Pods {
		if p.Pod.DeletionTimestamp != nil && !held {
			held = true
			s.podOfApp(p, false)
		}
	}
	for _, c := range s.view.Claims {
		switch {
		case c.Claim == nil || held:
		case c.Claim.DeletionTimestamp != nil:
			held = s.claimOfApp(c)
		case volume.DeletionProtected(c.Claim) && c.Claim.Annotations[tarnv1.AnnotationPreserve] != "true":
			held = true
			s.add(Link{Object: c.Object, State: "protected from deletion", Message: "its label " + tarnv1.LabelDeletionProtection + " keeps it, and the app with it; the command lifts that, and its data goes",
				Next: "when the label is gone", Command: kubectl(app.Namespace, "label", "pvc", c.Object.Name, tarnv1.LabelDeletionProtection+"-")})
			s.blame("%s is protected from deletion", c.Object)
		}
	}
	if held {
		return
	}
	s.controllerSilent("", app.DeletionTimestamp.Time)
	if !slices.Contains(app.Finalizers, tarnv1.FinalizerApp) {
		s.cause = "" // Tarn has let it go
	}
	for i, f := range app.Finalizers {
		if f != tarnv1.FinalizerApp {
			s.finalizer(link.Object, "app", i, f, app.DeletionTimestamp)
		}
	}
}
