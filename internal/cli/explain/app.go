package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/volume"
)

// Apps and pools say in their condition Ready what they wait for. The claims and pods that they
// have made are followed from there.

// ofApp finds what an App waits for, from its claims to its pods. It returns the App's state in a
// word or two.
func (s *story) ofApp(app *tarnv1.App) string {
	link := s.add(Link{Object: Object{App, app.Namespace, app.Name}, State: "not reconciled", Since: moment(app.CreationTimestamp.Time),
		Message: fmt.Sprintf("%d of %d pods are ready, image %s", app.Status.ReadyReplicas, ptr.Deref(app.Spec.Replicas, 1), cmp.Or(app.Spec.Image, "(none)"))})
	deployed, ready := conditionIn(app.Status.Conditions, tarnv1.ConditionDeployed), conditionIn(app.Status.Conditions, tarnv1.ConditionReady)
	switch {
	case app.DeletionTimestamp != nil:
		link.State, link.Since = "Terminating", moment(app.DeletionTimestamp.Time)
		s.endingApp(app, ready)
	case app.Spec.Image == "":
		link.State, link.Next = "not deployed", "when you deploy a paas.toml to it, as the command does"
		link.Command = "tarn app deploy " + quoted(app.Name) + " --namespace " + quoted(app.Namespace) + " --file paas.toml"
		s.blame("nothing is deployed to it")
	case app.Status.ObservedGeneration != app.Generation || deployed.Type == "" || ready.Type == "":
		s.controllerSilent("it has to be reconciled", changedAt(app))
	case deployed.Status != metav1.ConditionTrue && deployed.Reason == tarnv1.ReasonRefused:
		link.State, link.Since, link.Reason, link.Message = "refused", moment(deployed.LastTransitionTime.Time), deployed.Reason, deployed.Message
		link.Next = "when you change its spec, or remove what blocks it"
		s.blame("its spec is rejected: %s", deployed.Message)
		s.refusedApp(app, link)
	case ready.Status == metav1.ConditionTrue:
		link.State, link.Since = "Ready", moment(ready.LastTransitionTime.Time)
		s.fine = link.Message
		s.weigh(s.claimsOfApp(true)...) // what a claim says is newer
	default:
		link.State, link.Since, link.Reason = "not Ready", moment(ready.LastTransitionTime.Time), ready.Reason
		why := appplan.Brief(ready.Message) // the pod's own link has the log
		link.Message += "; " + why
		s.blame("%s", why)
		s.partsOfApp(app, ready)
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

// refusedApp offers what removes the obstacle to the spec of an App: fewer pods, or a claim that has
// the name of one of its volumes and not its labels. If that claim belongs to no other App and no
// pod uses it, it can be given to this App.
func (s *story) refusedApp(app *tarnv1.App, refused *Link) {
	for i, c := range s.view.Claims {
		if c.Claim == nil {
			continue
		}
		name, labels := app.Spec.Volumes[i].Name, c.Claim.Labels
		if labels[tarnv1.LabelApp] == app.Name && labels[tarnv1.LabelAppVolume] == name {
			if ptr.Deref(app.Spec.Replicas, 1) > 1 && volume.AccessOf(c.Claim.Spec.AccessModes) == volume.AccessOf([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) {
				refused.Command = "tarn app scale " + quoted(app.Name) + " 1 --namespace " + quoted(app.Namespace)
			}
			continue
		}
		link := s.add(Link{Object: c.Object, State: "not owned", Since: moment(c.Claim.CreationTimestamp.Time),
			Message: "the claim name that its volume " + name + " needs is taken by a claim that does not belong to the app"})
		switch other := labels[tarnv1.LabelApp]; {
		case other != "" && other != app.Name:
			link.Message += "; it belongs to app " + other
		case s.view.unknown(Pod, app.Namespace, ""):
		case len(c.using()) > 0:
			link.Message += "; pod " + c.using()[0].Pod.Name + " uses it"
		default:
			link.Command = kubectl(app.Namespace, "label", "pvc", c.Object.Name, "--overwrite", tarnv1.LabelApp+"="+app.Name, tarnv1.LabelAppVolume+"="+name)
			link.offer = "the command gives the claim to the app, with its data"
		}
		return
	}
}

// partsOfApp follows a deployed App to what it waits for: its claims, then its Deployment, then its
// pods.
func (s *story) partsOfApp(app *tarnv1.App, ready metav1.Condition) {
	before, followed := s.cause, false
	forGrowth := ready.Reason == tarnv1.ReasonResizing || ready.Reason == tarnv1.ReasonResizeFailed
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
	switch {
	case s.cause != before || s.followOther(func(part *story) bool { return part.rank == rankLarger }):
	case !followed && s.cause != "" && s.view.Workload == nil && !s.view.unknown(deployment, app.Namespace, workloadPrefix+app.Name):
		s.controllerSilent("its Deployment has to be created", changedAt(app))
	}
}

// claimParts returns the chains of claims. The cause of each names its claim.
func (s *story) claimParts(claims []*claimView) []*story {
	var parts []*story
	for _, c := range claims {
		part := s.part(c.Object.Name)
		part.ofClaim(c)
		if part.cause != "" {
			part.cause = fmt.Sprintf("%s: %s", c.Object, part.cause)
		} else if part.doubt != "" {
			part.doubt = fmt.Sprintf("%s: %s", c.Object, part.doubt)
		}
		parts = append(parts, part)
	}
	return parts
}

// claimsOfApp returns the chains of the App's claims, each with its rank for the App. A claim that
// grows does not block the App, because its pods may wait for something else. Nor does a claim that
// is being deleted under pods that serve.
func (s *story) claimsOfApp(serves bool) []*story {
	parts := s.claimParts(s.view.Claims)
	for i, part := range parts {
		switch {
		case part.cause == "" && part.doubt == "":
			part.links = nil
		case part.rank == rankGrowing:
			part.rank = rankLarger
		case part.rank == rankEnding && serves:
			part.rank = rankLeaving
		}
		if part.cause == "" && s.fine != "" && part.fine != "" {
			s.fine += fmt.Sprintf("; %s from %s", s.view.Claims[i].Object, part.fine)
		}
	}
	return parts
}

// workloadOfApp reports a Deployment that cannot create its pods, and says whether it is one.
func (s *story) workloadOfApp(d *appsv1.Deployment) bool {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue || c.Type == appsv1.DeploymentProgressing && c.Reason == "ReplicaSetCreateError" {
			s.add(Link{Object: Object{deployment, d.Namespace, d.Name}, State: "creates no pods", Since: moment(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message,
				Next: "when its pods are allowed; Kubernetes retries with backoff"})
			s.blame("its pods cannot be created: %s", c.Message)
			return true
		}
	}
	return false
}

// podOfApp follows a pod that is not ready. told says that the pod waits for its claims, which are
// reported already. The links of bound claims and their volumes only distract from the cause.
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
	for _, l := range part.links[1:] {
		if !slices.ContainsFunc(claims, func(c *claimView) bool {
			return c.Claim != nil && c.Claim.Status.Phase == corev1.ClaimBound && c.Claim.DeletionTimestamp == nil &&
				(l.Object == c.Object || l.Object == Object{Volume, "", c.Claim.Spec.VolumeName})
		}) {
			s.links = append(s.links, l)
		}
	}
	s.others = append(s.others, part.others...)
	s.blame("%s: %s", o, part.cause)
	s.rank = part.rank
}

// endingApp finds what keeps an App that is being deleted: its pods are deleted first, then its
// claims.
func (s *story) endingApp(app *tarnv1.App, ready metav1.Condition) {
	link := s.links[0]
	link.Next = "when its pods are gone, and then its claims except those to preserve"
	s.blame("it is being deleted")
	if ready.Reason == tarnv1.ReasonDeleting && ready.Message != "" {
		link.Reason, link.Message = ready.Reason, ready.Message
		s.blame("%s", ready.Message)
	}
	if i := slices.IndexFunc(s.view.Pods, func(p *podView) bool { return p.Pod.DeletionTimestamp != nil }); i >= 0 {
		s.podOfApp(s.view.Pods[i], false)
		return
	}
	if s.weigh(slices.DeleteFunc(s.claimsOfApp(false), func(part *story) bool { return part.rank != rankEnding })...) != nil {
		return
	}
	for _, c := range s.view.Claims {
		if c.Claim != nil && c.Claim.DeletionTimestamp == nil && volume.DeletionProtected(c.Claim) && c.Claim.Annotations[tarnv1.AnnotationPreserve] != "true" {
			s.add(Link{Object: c.Object, State: "protected from deletion", Message: "its label " + tarnv1.LabelDeletionProtection + " protects it, and so the app", offer: "the command removes the label, and its data is deleted",
				Next: "when the label is gone", Command: kubectl(app.Namespace, "label", "pvc", c.Object.Name, tarnv1.LabelDeletionProtection+"-")})
			s.blame("%s is protected from deletion", c.Object)
			return
		}
	}
	s.controllerSilent("", app.DeletionTimestamp.Time)
	if !slices.Contains(app.Finalizers, tarnv1.FinalizerApp) {
		s.cause = "" // Tarn has released it
	}
	s.keepers(link.Object, "app", app, tarnv1.FinalizerApp, true)
}

// ofSet finds why a pool lacks spare volumes, and returns its state in a word.
func (s *story) ofSet(set *tarnv1.PersistentVolumeSet, fillers []*claimView) string {
	status, most := set.Status, set.Spec.MaximumReplicas
	counts := fmt.Sprintf("%d of at least %d spare volumes, %d in use, %d being made, at most %d, class %s",
		status.UnboundReplicas, set.Spec.MinimumReplicas, status.BoundReplicas, status.CreatingReplicas, most, set.Spec.Template.Spec.StorageClassName)
	link := s.add(Link{Object: Object{Kind: Set, Name: set.Name}, State: "not reconciled", Since: moment(set.CreationTimestamp.Time), Message: counts})
	ready := conditionIn(status.Conditions, tarnv1.ConditionReady)
	switch {
	case set.DeletionTimestamp != nil:
		link.State, link.Since = "Terminating", moment(set.DeletionTimestamp.Time)
		if slices.Contains(set.Finalizers, tarnv1.FinalizerPool) {
			link.Next = "when its spare volumes are being deleted"
			s.blame("its spare volumes have to be deleted first")
			if ready.Status == metav1.ConditionFalse && ready.Message != "" {
				s.blame("%s", ready.Message)
			}
			s.controllerSilent("", set.DeletionTimestamp.Time)
		}
		s.keepers(link.Object, "pvset", set, tarnv1.FinalizerPool, true)
		return link.State
	case ready.Type == "" || status.ObservedGeneration != set.Generation:
		s.controllerSilent("it has to be reconciled", writtenAt(set))
		return link.State
	case ready.Status == metav1.ConditionTrue:
		link.State, link.Since = "Ready", moment(ready.LastTransitionTime.Time)
		s.fine = counts
		return link.State
	}
	link.State, link.Since, link.Reason = "not Ready", moment(ready.LastTransitionTime.Time), ready.Reason
	link.Message += "; " + ready.Message
	s.blame("%s", ready.Message)
	switch {
	case status.BoundReplicas+status.UnboundReplicas >= most && status.UnboundReplicas < set.Spec.MinimumReplicas && status.CreatingReplicas == 0:
		link.Next = "when a volume in use is released, or when you raise the maximum, as the command does"
		link.Command = kubectl("", "patch", "pvset", set.Name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"maximumReplicas":%d}}`, status.BoundReplicas+set.Spec.MinimumReplicas))
	case s.view.Maker != nil && s.provisionerUnusable(s.view.Maker, true): // filler claims, if there are any, wait for the same
	default:
		s.weigh(s.claimParts(fillers)...)
	}
	return link.State
}
