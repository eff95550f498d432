package protect

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/volume"
)

// The finalizers that Kubernetes' own controllers, or these, add and remove. The names are
// Kubernetes'.
const (
	FinalizerClaim  = "kubernetes.io/pvc-protection"
	FinalizerVolume = "kubernetes.io/pv-protection"
)

// Plan is what to do, in any order. Next is when to reconcile again without an event; zero means
// never.
type Plan struct {
	Actions []action.Action
	Next    time.Time
}

// planClaims decides about each claim of a namespace on its own. A claim that cannot be judged yet
// delays no other.
func planClaims(v *Namespace) Plan {
	var p Plan
	for i := range v.Claims {
		claim := v.Claims[i].Claim
		switch {
		case claim.DeletionTimestamp == nil && unsettledObject(claim, FinalizerClaim):
			p.Actions = append(p.Actions, action.AddFinalizer{Object: claim, Name: FinalizerClaim})
		case !doomed(&v.Claims[i]):
		case !v.Listed:
			if v.ListError == nil { // else the error says when
				p.Next = v.ListAt
			}
		case !v.Claims[i].heldByAny(v.Live):
			p.Actions = append(p.Actions, action.RemoveFinalizer{Object: claim, Name: FinalizerClaim})
		}
	}
	return p
}

// mustList says that a claim waits for nothing but a live list of the pods.
func mustList(v *Namespace) bool {
	return slices.ContainsFunc(v.Claims, func(c Claim) bool { return doomed(&c) })
}

// doomed says that a claim may be released, as far as the cache knows.
func doomed(c *Claim) bool {
	return c.Claim.DeletionTimestamp != nil && unsettledObject(c.Claim, FinalizerClaim) && !c.heldByAny(c.Pods)
}

// heldByAny says that a pod uses the claim and is not proven to have ended with nothing mounted.
func (c *Claim) heldByAny(pods []corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return volume.Uses(&p, c.Claim) && !c.unmounted(&p) })
}

// unmounted says that a pod has ended and no longer has the claim's volume mounted. No object shows
// the mounts of other drivers, so their pods count until they are gone.
func (c *Claim) unmounted(pod *corev1.Pod) bool {
	switch {
	case !terminal(pod) || c.Volume == nil:
		return false
	case c.Volume.Spec.HostPath != nil: // the container runtime mounts it, not the kubelet
		return true
	case !c.Staged:
		return false
	}
	return !slices.ContainsFunc(c.Stages, func(s tarnv1.PavStage) bool { return stagedFor(&s, pod) })
}

// stagedFor says that a pod has, or is about to get, a volume through a stage. A target that names
// no pod may belong to any pod of the node.
func stagedFor(stage *tarnv1.PavStage, pod *corev1.Pod) bool {
	if stage.Awaited() && stage.Spec.AheadFor.UID == pod.UID {
		return true
	}
	return slices.ContainsFunc(stage.Status.Node.Targets, func(target string) bool {
		uid := tarnv1.PodOfTarget(target)
		return uid == pod.UID || uid == "" && stage.Spec.NodeName == pod.Spec.NodeName
	})
}

// terminal says that a pod has ended for good and its status shows no running container. The
// containers matter because, on a lost node, others than the kubelet write the phase.
func terminal(pod *corev1.Pod) bool {
	return (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed) && !volume.Running(pod)
}

func usedByAny(pods []corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return volume.Uses(&p, claim) })
}

// planVolume decides about one volume. It keeps a Bound volume, and one that points at an existing
// claim. The binder may be about to bind that claim, and a claim is Lost if its volume is gone. A
// claim that names another volume does not need this one.
func planVolume(v *Volume) Plan {
	switch {
	case v.Volume.DeletionTimestamp == nil && unsettledObject(v.Volume, FinalizerVolume):
		return Plan{Actions: []action.Action{action.AddFinalizer{Object: v.Volume, Name: FinalizerVolume}}}
	case !loose(v.Volume):
		return Plan{}
	case v.Claim != nil && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.Volume.Name):
		return Plan{}
	}
	return Plan{Actions: []action.Action{action.RemoveFinalizer{Object: v.Volume, Name: FinalizerVolume}}}
}

// mustRead says that the claim decides whether a volume is released.
func mustRead(v *Volume) bool {
	return loose(v.Volume) && v.Volume.Spec.ClaimRef != nil && v.Volume.Spec.ClaimRef.UID != ""
}

// loose says that a volume is being deleted and is not Bound.
func loose(vol *corev1.PersistentVolume) bool {
	return vol.DeletionTimestamp != nil && unsettledObject(vol, FinalizerVolume) && vol.Status.Phase != corev1.VolumeBound
}

// unsettledObject says that an object lacks the finalizer, or is being deleted and has it.
func unsettledObject(o metav1.Object, finalizer string) bool {
	return slices.Contains(o.GetFinalizers(), finalizer) == (o.GetDeletionTimestamp() != nil)
}
