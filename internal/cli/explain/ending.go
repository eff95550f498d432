package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

const (
	claimProtection  = "kubernetes.io/pvc-protection"
	volumeProtection = "kubernetes.io/pv-protection"
)

// endingClaim finds what keeps a claim that is being deleted.
func (s *story) endingClaim(c *claimView) {
	using, hidden := c.using(), s.view.unknown(Pod, c.Object.Namespace, "")
	link := s.links[len(s.links)-1]
	link.Message = fmt.Sprintf("deletion was requested %s ago", s.ago(c.Claim.DeletionTimestamp.Time))
	protected := slices.Contains(c.Claim.Finalizers, claimProtection)
	switch {
	case len(using) > 0: // whichever finalizer keeps the claim while they use it
		s.usedBy(c, using, protected)
	case protected && !hidden:
		s.protectionSilent(c.Object, c.Claim.DeletionTimestamp.Time, false, "no pod uses it")
	case protected:
		s.keepers(c.Object, "pvc", c.Claim, "", false, c.Events...)
		return
	}
	s.keepers(c.Object, "pvc", c.Claim, claimProtection, !hidden, c.Events...)
}

// using returns the pods that keep a claim from being deleted.
func (c *claimView) using() []user {
	return slices.DeleteFunc(slices.Clone(c.Users), func(u user) bool { return !holds(u.Pod, c.Claim) })
}

// holds says whether a pod keeps a claim from being deleted. A pod that has a node does so until it
// is gone. With Tarn's protection, a pod that has ended may not: see usedBy.
func holds(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
			return true
		}
		ended := pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
		if v.Ephemeral != nil && volume.EphemeralClaim(pod.Name, v.Name) == claim.Name && metav1.IsControlledBy(claim, pod) && !ended {
			return true
		}
	}
	return false
}

// usedBy reports the pods that use a claim, and how to end each. Pods that are being deleted come
// last, because what keeps them is nearer to the cause.
func (s *story) usedBy(c *claimView, using []user, protected bool) {
	slices.SortStableFunc(using, func(a, b user) int { return cmp.Compare(going(a.Pod), going(b.Pod)) })
	var names []string
	kept := ""
	commands := map[string]bool{}
	for i := range using {
		u := &using[i]
		names = append(names, u.Pod.Namespace+"/"+u.Pod.Name)
		if u.Pod.DeletionTimestamp != nil {
			if why := s.goingUser(c, u); kept == "" && why != "" {
				kept = fmt.Sprintf("; %s is being deleted: %s", names[i], why)
			}
			continue
		}
		t, command := look(u.Pod), stop(*u, c.Object.Name)
		link := s.add(Link{Object: Object{Pod, u.Pod.Namespace, u.Pod.Name}, State: t.State, Since: moment(t.Since), Node: u.Pod.Spec.NodeName, Reason: t.Reason,
			Message: usesIt, Next: "when the pod is gone"})
		if hasEnded(u.Pod) {
			link.Message, link.Next = endedUse, "when the pod is deleted, or with Tarn's protection when its volume is unmounted"
		} else if !s.view.endsClaims() { // nothing is wrong with the pod
			link.Next += "; until then the pod is not affected"
		}
		if !protected {
			link.Message = "it uses the claim; only the remaining finalizers keep the claim"
		}
		if u.Workload.Kind != "" {
			link.Message += fmt.Sprintf("; %s %s would create it again", u.Workload.Kind, u.Workload.Name)
		}
		if !s.view.endsClaims() {
			link.Message += "; to release the claim: " + command
		} else if !commands[command] {
			link.Command, commands[command] = command, true
		}
	}
	if len(names) > 1 {
		s.blame("it is used by %d pods %s%s", len(names), join(names), kept)
		return
	}
	s.blame("it is used by pod %s%s", names[0], strings.Replace(kept, "; "+names[0]+" is", ", which is", 1))
}

// endsClaims says whether the user asks about the deletion of claims, not about a pod that should
// run.
func (v *View) endsClaims() bool {
	return v.Asked.Kind == Claim || v.Asked.Kind == App && v.App.DeletionTimestamp != nil
}

// usesIt is the message for each pod that keeps a claim.
const usesIt = "it uses the claim, which " + claimProtection + " keeps until the pod is gone"

// endedUse is the message for a pod that has ended. No object shows whose protection is active.
const endedUse = "it has ended; " + claimProtection + " keeps the claim: Kubernetes' protection until the pod is deleted, Tarn's while the volume is mounted, which is known only for Tarn's drivers"

// going is 1 for a pod that is being deleted, else 0.
func going(pod *corev1.Pod) int {
	if pod.DeletionTimestamp != nil {
		return 1
	}
	return 0
}

// goingUser follows a pod that is being deleted to what keeps the pod. To delete the pod once more
// would do nothing. why is empty for the pod that the user asked about.
func (s *story) goingUser(c *claimView, u *user) (why string) {
	if s.view.Asked == (Object{Pod, u.Pod.Namespace, u.Pod.Name}) {
		return "" // the pod's own link reports what keeps it
	}
	p := u.View
	if p == nil {
		p = &podView{Pod: u.Pod}
	}
	part := &story{view: s.view}
	link, _ := part.podLink(p)
	link.State, link.Since = "Terminating", moment(deletedAt(u.Pod))
	how := ""
	if !volume.ShutDown(u.Pod) {
		how = part.nodeDown(p)
	}
	if how != "" {
		part.blame("its node %s %s", u.Pod.Spec.NodeName, how)
	} else {
		part.endingPod(p, link, []*claimView{c})
	}
	link.Message = strings.TrimSuffix(usesIt+"; "+link.Message, "; ")
	s.links = append(s.links, part.links...)
	s.others = append(s.others, part.others...)
	s.heed(part)
	return part.cause
}

// stop returns the command that ends a pod so that it releases a claim. It scales down or suspends
// the pod's owner, where that can be undone. Otherwise it deletes only the pod: a new pod gets no
// node while the claim is being deleted.
func stop(u user, claim string) string {
	o := u.Workload
	// Scaling the Deployment of an App has no effect: Tarn scales it up again.
	if app := u.Pod.Labels[tarnv1.LabelApp]; app != "" && o.Kind == "Deployment" {
		return "tarn app scale " + quoted(app) + " 0 --namespace " + quoted(o.Namespace)
	}
	switch {
	case o.Kind == "StatefulSet" && strings.HasSuffix(claim, "-"+u.Pod.Name): // only one of its pods uses this claim
	case o.Kind == "Job" && !hasEnded(u.Pod):
		return kubectl(o.Namespace, "patch", "job", o.Name, "-p", `{"spec":{"suspend":true}}`)
	case slices.Contains([]Kind{"Deployment", "StatefulSet", replicaSet, "ReplicationController"}, o.Kind):
		return kubectl(o.Namespace, "scale", lower(o.Kind), o.Name, "--replicas=0")
	}
	return kubectl(u.Pod.Namespace, "delete", "pod", u.Pod.Name)
}

// protectionSilent is about a protection finalizer without a reason since a time. The time is not
// exact where the reason was a pod or claim that is gone, because no object records when it was
// deleted. In that case a controller is blamed only after a second read.
func (s *story) protectionSilent(o Object, since time.Time, exact bool, because string) {
	if s.young(since) || !exact && !s.view.Twice {
		s.again = s.again || !s.young(since)
		s.links[len(s.links)-1].Next = "within moments"
		s.awaits("%s, so it is deleted within moments", because)
		return
	}
	s.blame("%s, but its protection controller does not remove the finalizer", because)
	s.onController = true
	s.add(Link{Object: Object{Kind: "controller", Name: "protection"}, State: "silent", Next: "when the controller runs", Command: s.revives("protect"),
		Message: "either kube-controller-manager runs with its protection controllers, or tarn controller with protect among its --controllers; neither has responded for " + o.String()})
}

// keepers reports the finalizers that keep an object, except but, which is reported already.
// Finalizers with a known owner come first. For others the link offers to remove one, if no pod
// uses the object and nothing else keeps it. The object's events, newest last, show the progress of
// the finalizers' owners.
func (s *story) keepers(o Object, resource string, of metav1.Object, but string, unused bool, events ...corev1.Event) {
	var parts []*story
	for i, f := range of.GetFinalizers() {
		if f == but {
			continue
		}
		part := s.part(fmt.Sprintf("1-%03d", i))
		if _, known := ownerOf(f); known {
			part.name = fmt.Sprintf("0-%03d", i)
		}
		part.finalizer(o, resource, i, f, of.GetDeletionTimestamp(), unused)
		if claim, ok := of.(*corev1.PersistentVolumeClaim); ok && f == tarnv1.FinalizerInProcess {
			part.undoingPromise(claim, events)
		}
		if s.cause != "" {
			part.rank = rankBeside
		}
		parts = append(parts, part)
	}
	s.weigh(parts...)
}

// finalizer reports a finalizer that keeps an object, and its owner. It offers to remove the
// finalizer only if the object is unused, because its consumers would lose it.
func (s *story) finalizer(o Object, resource string, at int, name string, since *metav1.Time, unused bool) {
	owner, known := ownerOf(name)
	link := s.add(Link{Object: o, State: "kept by finalizer " + name, Since: moment(since.Time), Reason: "Finalizer", Message: "it belongs to " + owner, Next: "when its owner removes it"})
	s.blame("finalizer %s keeps it; it belongs to %s", name, owner)
	if !known && unused {
		link.Command, link.offer = dropFinalizer(o, resource, at, name), "the command removes it by force; use it only if that owner is gone for good and will not clean up"
	}
}

// undoingPromise is about a claim being deleted for which a provisioner inside Tarn's controller
// may have begun a volume. The controller removes its finalizer when nothing is left of that
// volume.
func (s *story) undoingPromise(claim *corev1.PersistentVolumeClaim, events []corev1.Event) {
	link, since := s.links[len(s.links)-1], claim.DeletionTimestamp.Time
	last := newest(events, "ProvisioningCleanupFailed", "VolumeDelete", "ProvisioningSucceeded")
	switch {
	case claim.Spec.VolumeName != "": // the volume was created and bound
		s.controllerSilent("it has its volume, and Tarn has to remove finalizer "+tarnv1.FinalizerInProcess, since)
	case last == nil || last.Reason == "ProvisioningSucceeded":
		link.Next = "when Tarn has removed what was made, which takes longer for much data"
		s.atWork("what may have been made for it", "is being undone", "has to be undone", since)
	default:
		link.Since, link.Reason, link.Message = moment(LastSeen(last)), last.Reason, last.Message
		link.Next = "when that is fixed; Tarn retries"
		s.blame("what may have been made for it cannot be undone: %s", last.Message)
		s.controllerSilent("", since)
	}
}
