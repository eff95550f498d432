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

// endingClaim finds out what keeps a claim that is to go.
func (s *story) endingClaim(c *claimView) {
	using := slices.DeleteFunc(slices.Clone(c.Users), func(u user) bool { return !holds(u.Pod, c.Claim) })
	link := s.links[len(s.links)-1]
	link.Message = fmt.Sprintf("deletion was requested %s ago", s.ago(c.Claim.DeletionTimestamp.Time))
	for i, f := range c.Claim.Finalizers {
		switch {
		case f == claimProtection && len(using) > 0:
			s.usedBy(c, using)
		case f == claimProtection && s.view.unknown(Pod, c.Object.Namespace, ""):
			s.finalizer(c.Object, "pvc", i, f, c.Claim.DeletionTimestamp)
		case f == claimProtection:
			s.protectionSilent(c.Object, c.Claim.DeletionTimestamp.Time, false, "no pod uses it any more")
		default:
			s.finalizer(c.Object, "pvc", i, f, c.Claim.DeletionTimestamp)
		}
	}
}

// holds says whether a pod keeps a claim from going: one that was given a node does,
// ended or not, until it is gone.
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

// usedBy tells which pods use a claim, and how each goes. Those that are being deleted
// already come last, as what keeps them is nearer to the cause.
func (s *story) usedBy(c *claimView, using []user) {
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
		t := look(u.Pod)
		link := s.add(Link{Object: Object{Pod, u.Pod.Namespace, u.Pod.Name}, State: t.State, Since: moment(t.Since), Node: u.Pod.Spec.NodeName, Reason: t.Reason,
			Message: usesIt, Next: "when the pod is gone"})
		command := stop(*u)
		if u.Workload.Kind != "" {
			link.Message += fmt.Sprintf("; %s %s would make it again", u.Workload.Kind, u.Workload.Name)
		}
		if !commands[command] {
			link.Command, commands[command] = command, true
		}
	}
	if len(names) > 1 {
		s.blame("it is used by %d pods %s%s", len(names), join(names), kept)
		return
	}
	s.blame("it is used by pod %s%s", names[0], strings.Replace(kept, "; "+names[0]+" is", ", which is", 1))
}

// usesIt is what is said of each pod that keeps a claim.
const usesIt = "it uses the claim, which " + claimProtection + " keeps until the pod is gone"

// going is 1 for a pod that is being deleted, else 0.
func going(pod *corev1.Pod) int {
	if pod.DeletionTimestamp != nil {
		return 1
	}
	return 0
}

// goingUser follows a pod that keeps a claim to what keeps the pod, as where the pod is
// asked for: to delete it once more would do nothing.
func (s *story) goingUser(c *claimView, u *user) (why string) {
	if s.view.Asked == (Object{Pod, u.Pod.Namespace, u.Pod.Name}) {
		return "" // what keeps it is told with it
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
	return part.cause
}

// stop gives the command that ends a pod for good: what would make it again goes
// first.
func stop(u user) string {
	o := u.Workload
	// The Deployment of an App would be given its pods back.
	if app := u.Pod.Labels[tarnv1.LabelApp]; app != "" && o.Kind == "Deployment" {
		return "tarn app scale " + quoted(app) + " 0 --namespace " + quoted(o.Namespace)
	}
	switch o.Kind {
	case "Deployment", "StatefulSet", replicaSet, "ReplicationController":
		return kubectl(o.Namespace, "scale", lower(o.Kind), o.Name, "--replicas=0")
	case "DaemonSet", "Job":
		return kubectl(o.Namespace, "delete", lower(o.Kind), o.Name)
	}
	return kubectl(u.Pod.Namespace, "delete", "pod", u.Pod.Name)
}

// protectionSilent is about a finalizer of protection that has no reason to stay since a
// time. That time is not exact where the reason was a pod or a claim that is gone: no
// object tells when it went, so a controller is blamed only after a second look.
func (s *story) protectionSilent(o Object, since time.Time, exact bool, because string) {
	if s.young(since) || !exact && !s.view.Twice {
		s.again = s.again || !s.young(since)
		s.links[len(s.links)-1].Next = "within moments"
		s.blame("%s, so it goes within moments", because)
		return
	}
	s.blame("%s, but the controller that protects it does not let go", because)
	s.onController = true
	s.add(Link{Object: Object{Kind: "controller", Name: "protection"}, State: "silent", Next: "as soon as the controller runs", Command: revive(s.view.Deployment, "protect"),
		Message: "either kube-controller-manager runs with its protection controllers, or tarn controller with protect among its --controllers; neither has answered for " + o.String()})
}

// byForce says what the command does that takes off a finalizer nobody knows.
const byForce = "; the command takes it off by force, for when that is gone for good and will not clean up"

// finalizer tells of a finalizer that keeps an object, and whose it is.
func (s *story) finalizer(o Object, resource string, at int, name string, since *metav1.Time) {
	owner, known := ownerOf(name)
	link := s.add(Link{Object: o, State: "kept by finalizer " + name, Since: moment(since.Time), Reason: "Finalizer", Message: "it is of " + owner, Next: "when its owner takes it off"})
	if s.cause == "" {
		s.blame("finalizer %s keeps it, which is of %s", name, owner)
	}
	if !known {
		link.Message += byForce
		link.Command = dropFinalizer(o, resource, at, name)
	}
}
