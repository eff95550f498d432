package protect

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// Kubernetes' names of the finalizers that its own controllers, or these, put on and
// take off.
const (
	FinalizerClaim  = "kubernetes.io/pvc-protection"
	FinalizerVolume = "kubernetes.io/pv-protection"
)

// Plan is what to do, in any order, and when to look again though no event tells;
// zero: not needed.
type Plan struct {
	Actions []Action
	Next    time.Time
}

// Action is one write. It is one of the types below, each of which may be done
// twice without harm, and is refused where the object has changed since it was read.
type Action interface{ action() }

type (
	// ProtectClaim puts the finalizer on a claim, ReleaseClaim takes it off.
	ProtectClaim struct{ Claim *corev1.PersistentVolumeClaim }
	ReleaseClaim struct{ Claim *corev1.PersistentVolumeClaim }
	// ProtectVolume and ReleaseVolume do so with a volume.
	ProtectVolume struct{ Volume *corev1.PersistentVolume }
	ReleaseVolume struct{ Volume *corev1.PersistentVolume }
)

func (ProtectClaim) action()  {}
func (ReleaseClaim) action()  {}
func (ProtectVolume) action() {}
func (ReleaseVolume) action() {}

// planClaims decides for every claim of a namespace by itself: one that cannot be
// judged yet holds up no other.
func planClaims(v *Namespace) Plan {
	var p Plan
	for i := range v.Claims {
		claim := v.Claims[i].Claim
		switch {
		case claim.DeletionTimestamp == nil && unsettledObject(claim, FinalizerClaim):
			p.Actions = append(p.Actions, ProtectClaim{claim})
		case !doomed(&v.Claims[i]):
		case !v.Listed:
			if v.ListError == nil { // else the error says when
				p.Next = v.ListAt
			}
		case !v.Claims[i].heldByAny(v.Live):
			p.Actions = append(p.Actions, ReleaseClaim{claim})
		}
	}
	return p
}

// mustList says that a claim waits for nothing but a look at the pods as they are.
func mustList(v *Namespace) bool {
	return slices.ContainsFunc(v.Claims, func(c Claim) bool { return doomed(&c) })
}

// doomed says that a claim would be let go as far as the cache knows.
func doomed(c *Claim) bool {
	return c.Claim.DeletionTimestamp != nil && unsettledObject(c.Claim, FinalizerClaim) && !c.heldByAny(c.Pods)
}

// heldByAny says that a pod keeps the claim: it uses it, and it is not proven that it has
// ended with nothing mounted.
func (c *Claim) heldByAny(pods []corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return volume.Uses(&p, c.Claim) && !c.unmounted(&p) })
}

// unmounted says that a pod has ended and has the claim's volume mounted no more. What
// other drivers have mounted no object tells: their pods count until they are gone.
func (c *Claim) unmounted(pod *corev1.Pod) bool {
	switch {
	case !terminal(pod) || c.Volume == nil:
		return false
	case c.Volume.Spec.HostPath != nil: // the container runtime mounts it, the kubelet nothing
		return true
	case !c.Staged:
		return false
	}
	return !slices.ContainsFunc(c.Stages, func(s tarnv1.PavStage) bool { return stagedFor(&s, pod) })
}

// stagedFor says that a pod has, or is about to get, a volume by a stage. A target that
// names no pod may be that of any pod of the node.
func stagedFor(stage *tarnv1.PavStage, pod *corev1.Pod) bool {
	if stage.Awaited() && stage.Spec.AheadFor.UID == pod.UID {
		return true
	}
	return slices.ContainsFunc(stage.Status.Node.Targets, func(target string) bool {
		uid := tarnv1.PodOfTarget(target)
		return uid == pod.UID || uid == "" && stage.Spec.NodeName == pod.Spec.NodeName
	})
}

// terminal says that a pod has ended for good and that none of its containers is said to
// run: where a node is lost, others than its kubelet write the phase.
func terminal(pod *corev1.Pod) bool {
	s := &pod.Status
	if s.Phase != corev1.PodSucceeded && s.Phase != corev1.PodFailed {
		return false
	}
	for _, statuses := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		if slices.ContainsFunc(statuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil }) {
			return false
		}
	}
	return true
}

func usedByAny(pods []corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	for i := range pods {
		if volume.Uses(&pods[i], claim) {
			return true
		}
	}
	return false
}

// planVolume decides for one volume. Beside one that is Bound it keeps one that points
// to a claim which exists: the binder may be about to say so on the claim, and a claim
// that names a volume which is gone is Lost. A claim that has another volume by now
// has no use for this one.
func planVolume(v *Volume) Plan {
	switch {
	case v.Volume.DeletionTimestamp == nil && unsettledObject(v.Volume, FinalizerVolume):
		return Plan{Actions: []Action{ProtectVolume{v.Volume}}}
	case !loose(v.Volume):
		return Plan{}
	case v.Claim != nil && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.Volume.Name):
		return Plan{}
	}
	return Plan{Actions: []Action{ReleaseVolume{v.Volume}}}
}

// mustRead says that it depends on the claim whether a volume is let go.
func mustRead(v *Volume) bool {
	return loose(v.Volume) && v.Volume.Spec.ClaimRef != nil && v.Volume.Spec.ClaimRef.UID != ""
}

// loose says that a volume is being deleted and not Bound.
func loose(vol *corev1.PersistentVolume) bool {
	return vol.DeletionTimestamp != nil && unsettledObject(vol, FinalizerVolume) && vol.Status.Phase != corev1.VolumeBound
}

// unsettledObject says that an object lacks the finalizer, or is being deleted and
// has it.
func unsettledObject(o metav1.Object, finalizer string) bool {
	return slices.Contains(o.GetFinalizers(), finalizer) == (o.GetDeletionTimestamp() != nil)
}
