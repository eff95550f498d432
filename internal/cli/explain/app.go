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
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/volume"
)

// ofApp finds what an App waits for, from its claims to its pods. It returns the App's state in a
// word or two.
func (s *story) ofApp(app *tarnv1.App) string {
	o := Object{App, app.Namespace, app.Name}
	pods := ptr.Deref(app.Spec.Replicas, 1)
	link := s.add(Link{Object: o, State: "not reconciled", Since: moment(app.CreationTimestamp.Time),
		Message: fmt.Sprintf("%d of %d pods are ready, image %s", app.Status.ReadyReplicas, pods, cmp.Or(app.Spec.Image, "(none)"))})
	deployed := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionDeployed)
	ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady)
	switch {
	case app.DeletionTimestamp != nil:
		link.State, link.Since = "Terminating", moment(app.DeletionTimestamp.Time)
		s.endingApp(app, ready)
	case app.Spec.Image == "":
		link.State, link.Next = "not deployed", "when you deploy a paas.toml to it, as the command does"
		link.Command = "tarn app deploy " + quoted(app.Name) + " --namespace " + quoted(app.Namespace) + " --file paas.toml"
		s.blame("nothing is deployed to it")
	case app.Status.ObservedGeneration != app.Generation || deployed == nil || ready == nil:
		s.controllerSilent("it has to be reconciled", changedAt(app))
	case deployed.Status != metav1.ConditionTrue && deployed.Reason == tarnv1.ReasonRefused:
		link.State, link.Since, link.Reason, link.Message = "refused", moment(deployed.LastTransitionTime.Time), deployed.Reason, deployed.Message
		s.refusedApp(app, link, deployed.Message)
	case ready.Status == metav1.ConditionTrue:
		link.State, link.Since = "Ready", moment(ready.LastTransitionTime.Time)
		s.fine = link.Message
		s.weigh(s.claimsOfApp(true)...) // what a claim says is newer
	default:
		link.State, link.Since, link.Reason = "not Ready", moment(ready.LastTransitionTime.Time), ready.Reason
		why := appplan.Brief(ready.Message) // the pod's own link has the log
		link.Message += "; " + why
		s.blame("%s", why)
		s.partsOfApp(app)
	}
	return link.State
}

// changedAt returns when a user last changed an App. Its controller writes only the status.
func changedAt(app *tarnv1.App) time.Time {
	at := app.CreationTimestamp.Time
	for _, m := range app.ManagedFields {
		if m.Subresource == "" && m.Time != nil && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}

// refusedApp says what blocks the spec of an App.
func (s *story) refusedApp(app *tarnv1.App, link *Link, message string) {
	link.Next = "when you change its spec, or remove what blocks it"
	s.blame("its spec is rejected: %s", message)
	for i, c := range s.view.Claims {
		name := app.Spec.Volumes[i].Name
		switch {
		case c.Claim == nil:
		case c.Claim.Labels[tarnv1.LabelApp] != app.Name || c.Claim.Labels[tarnv1.LabelAppVolume] != name:
			s.notItsOwn(app, c, name)
			return
		case ptr.Deref(app.Spec.Replicas, 1) > 1 && volume.AccessOf(c.Claim.Spec.AccessModes) == volume.AccessOf([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}):
			link.Command = "tarn app scale " + quoted(app.Name) + " 1 --namespace " + quoted(app.Namespace)
		}
	}
}

// notItsOwn reports a claim with the name of one of the App's volumes, but without the App's
// labels. If it belongs to no other App and no pod uses it, the link offers to give it to this App.
func (s *story) notItsOwn(app *tarnv1.App, c *claimView, name string) {
	link := s.add(Link{Object: c.Object, State: "not owned", Since: moment(c.Claim.CreationTimestamp.Time),
		Message: "the claim name that its volume " + name + " needs is taken by a claim that does not belong to the app"})
	other := c.Claim.Labels[tarnv1.LabelApp]
	switch {
	case other != "" && other != app.Name:
		link.Message += "; it belongs to app " + other
	case s.view.unknown(Pod, app.Namespace, ""):
	case len(c.using()) > 0:
		link.Message += "; pod " + c.using()[0].Pod.Name + " uses it"
	default:
		link.Command = kubectl(app.Namespace, "label", "pvc", c.Object.Name, "--overwrite", tarnv1.LabelApp+"="+app.Name, tarnv1.LabelAppVolume+"="+name)
		link.offer = "the command gives the claim to the app, with its data"
	}
}

// partsOfApp follows a deployed App to what it waits for: its claims, then its Deployment, then its
// pods.
func (s *story) partsOfApp(app *tarnv1.App) {
	before, followed := s.cause, false
	ready := meta.FindStatusCondition(app.Status.Conditions, tarnv1.ConditionReady)
	forGrowth := ready != nil && (ready.Reason == tarnv1.ReasonResizing || ready.Reason == tarnv1.ReasonResizeFailed)
	waits := s.weigh(s.claimsOfApp(false)...) != nil
	if d := s.view.Workload; d != nil && !waits {
		waits = s.workloadOfApp(d)
	}
	for _, p := range s.view.Pods {
		if p.Pod.DeletionTimestamp != nil && (waits || forGrowth || len(s.view.Pods) > 1) {
			continue // another pod replaces it, or it is not what the App waits for
		}
		s.podOfApp(p, waits)
		followed = true
		break // the others wait for the same
	}
	if s.cause == before && s.followOther(func(part *story) bool { return part.rank == rankLarger }) {
		return
	}
	if s.cause == before && !followed && s.cause != "" && s.view.Workload == nil && !s.view.unknown(deployment, app.Namespace, workloadPrefix+app.Name) {
		s.controllerSilent("its Deployment has to be created", changedAt(app))
	}
}

// claimsOfApp returns the chains of the App's claims, each with its rank for the App. A claim that
// grows does not block the App, because its pods may wait for something else. Nor does a claim that
// is being deleted under pods that serve.
func (s *story) claimsOfApp(serves bool) []*story {
	var parts []*story
	for _, c := range s.view.Claims {
		part := s.part(c.Object.Name)
		part.ofClaim(c)
		switch {
		case part.cause == "" && part.doubt == "":
			part.links = nil
		case part.cause == "":
			part.doubt = fmt.Sprintf("%s: %s", c.Object, part.doubt)
		case part.rank == rankGrowing:
			part.rank = rankLarger
		case part.rank == rankEnding && serves:
			part.rank = rankLeaving
		}
		if part.cause != "" {
			part.cause = fmt.Sprintf("%s: %s", c.Object, part.cause)
		} else if s.fine != "" && part.fine != "" {
			s.fine += fmt.Sprintf("; %s from %s", c.Object, part.fine)
		}
		parts = append(parts, part)
	}
	return parts
}

// replicaSetRefused is the reason of a Deployment that may not create its ReplicaSet.
const replicaSetRefused = "ReplicaSetCreateError"

// workloadOfApp reports a Deployment that cannot create its pods, and says whether it is one.
func (s *story) workloadOfApp(d *appsv1.Deployment) bool {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue || c.Type == appsv1.DeploymentProgressing && c.Reason == replicaSetRefused {
			s.add(Link{Object: Object{deployment, d.Namespace, d.Name}, State: "creates no pods", Since: moment(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message,
				Next: "when its pods are allowed; Kubernetes retries with backoff"})
			s.blame("its pods cannot be created: %s", c.Message)
			return true
		}
	}
	return false
}

// podOfApp follows a pod that is not ready. told says that the pod waits for its claims, which are
// reported already.
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
		part.links[0].Next = "" // the pod continues when its claims do
	}
	if told || part.cause == "" || part.rank == rankLarger {
		return
	}
	s.links = append(s.links, beyond(part.links[1:], claims)...)
	s.others = append(s.others, part.others...)
	s.blame("%s: %s", o, part.cause)
	s.rank = part.rank
}

// beyond leaves out the links of bound claims and their volumes, which only distract from the
// cause.
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

// endingApp finds what keeps an App that is being deleted: its pods are deleted first, then its
// claims.
func (s *story) endingApp(app *tarnv1.App, ready *metav1.Condition) {
	link := s.links[0]
	link.Next = "when its pods are gone, and then its claims except those to preserve"
	s.blame("it is being deleted")
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
	if !held {
		ending := slices.DeleteFunc(s.claimsOfApp(false), func(part *story) bool { return part.rank != rankEnding })
		held = s.weigh(ending...) != nil
	}
	for _, c := range s.view.Claims {
		if !held && c.Claim != nil && c.Claim.DeletionTimestamp == nil && volume.DeletionProtected(c.Claim) && c.Claim.Annotations[tarnv1.AnnotationPreserve] != "true" {
			held = true
			s.add(Link{Object: c.Object, State: "protected from deletion", Message: "its label " + tarnv1.LabelDeletionProtection + " protects it, and so the app", offer: "the command removes the label, and its data is deleted",
				Next: "when the label is gone", Command: kubectl(app.Namespace, "label", "pvc", c.Object.Name, tarnv1.LabelDeletionProtection+"-")})
			s.blame("%s is protected from deletion", c.Object)
		}
	}
	if held {
		return
	}
	s.controllerSilent("", app.DeletionTimestamp.Time)
	if !slices.Contains(app.Finalizers, tarnv1.FinalizerApp) {
		s.cause = "" // Tarn has released it
	}
	s.keepers(link.Object, "app", app, tarnv1.FinalizerApp, true)
}
