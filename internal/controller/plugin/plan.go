package plugin

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// retentionLook is how often a retention is checked. No event of the volume tells when its
// class or its set changes.
const retentionLook = time.Minute

// Act is what a reconcile does; a closed set.
//
//	claim   (given to a plugin) -> Promise -> Make -> (bound) -> Fulfil
//	                                  |         |
//	                                  +-> Undo <+  the claim is withdrawn, or the node failed
//	volume  Hold, or LetGo where its policy is not Delete -> (released) -> Delete
type Act string

// The acts. Each is idempotent and leaves objects from which the next one follows.
const (
	// ActNone: wait for an event.
	ActNone Act = "None"
	// ActRefuse: warn the claim with Plan.Warning. With Plan.GiveBack, let the scheduler choose
	// another node.
	ActRefuse Act = "Refuse"
	// ActPromise: record in the claim that something may have been made for it.
	ActPromise Act = "Promise"
	// ActMake: have the volume made and write its PersistentVolume.
	ActMake Act = "Make"
	// ActUndo: destroy what may have been made, then remove the promise.
	ActUndo Act = "Undo"
	// ActFulfil: remove the promise, because the PersistentVolume exists or existed.
	ActFulfil Act = "Fulfil"
	// ActHold: add the finalizer to a volume that is to be destroyed after its release.
	ActHold Act = "Hold"
	// ActLetGo: remove the finalizer from a volume that is not.
	ActLetGo Act = "LetGo"
	// ActKeep: warn about the volume with Plan.Warning, and leave it.
	ActKeep Act = "Keep"
	// ActRetain: say why the volume is not destroyed yet, and reconcile at Plan.Next.
	ActRetain Act = "Retain"
	// ActDelete: destroy the volume, then its PersistentVolume.
	ActDelete Act = "Delete"
)

// Plan is what to do about one volume.
type Plan struct {
	Act Act
	// Warning is emitted about the claim, or with ActKeep and ActRetain about the volume.
	// Kubernetes merges Events that differ only in their note, so each Cause is an action of
	// its own.
	Warning, Cause string
	// GiveBack means that the scheduler must choose another node.
	GiveBack bool
	// Retry means that no event tells when the cause is gone.
	Retry bool
	// Next is when to reconcile if no event arrives; zero means never.
	Next time.Time
}

// decide decides what to do with the volume of the View.
func decide(v *View, now time.Time) Plan {
	if v.Volume != nil {
		return decideVolume(v, now)
	}
	if v.Claim == nil {
		return Plan{Act: ActNone}
	}
	if promised(v.Claim) {
		return decidePromised(v)
	}
	if v.Plugin == nil || !wanted(v) {
		return Plan{Act: ActNone}
	}
	if p := refusal(v); p.Act != ActNone {
		return p
	}
	return Plan{Act: ActPromise}
}

// promised reports whether a volume may have been made for a claim that has none yet.
func promised(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, tarnv1.FinalizerInProcess)
}

// wanted reports whether the claim waits for this volume. The binder reports a missing class.
func wanted(v *View) bool {
	c, class := v.Claim, v.Class
	if c.DeletionTimestamp != nil || c.Spec.VolumeName != "" || volume.StateOfClaim(c) == volume.ClaimCompleted || volume.ForPopulator(c) || class == nil ||
		class.Provisioner != v.Plugin.Name || volume.ProvisionerOf(c) != v.Plugin.Name {
		return false
	}
	waits := ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
	return !waits || c.Annotations[volume.AnnSelectedNode] != ""
}

// refusal says why the plugin makes no volume for a claim; ActNone if it makes one.
func refusal(v *View) Plan {
	c, class, name := v.Claim, v.Class, v.Plugin.Name
	refuse := func(cause, format string, args ...any) Plan {
		return Plan{Act: ActRefuse, Cause: cause, Warning: fmt.Sprintf(format, args...)}
	}
	switch {
	case volume.HasSource(c):
		return refuse("DataSource", "%s cannot create a volume from a data source; create the claim again without spec.dataSource", name)
	case c.Spec.Selector != nil:
		return refuse("Selector", "%s cannot create a volume for a selector; create the claim again without spec.selector", name)
	case volume.AttributesClassOf(c) != "":
		return refuse("AttributesClass", "%s does not support VolumeAttributesClass; create the claim again without spec.volumeAttributesClassName %q", name, volume.AttributesClassOf(c))
	case len(class.MountOptions) > 0:
		return refuse("MountOptions", "%s does not support mount options; remove mountOptions %q from StorageClass %s", name, class.MountOptions, class.Name)
	case tooLarge(c):
		return refuse("TooLarge", "spec.resources.requests.storage %s is more than the largest possible volume, %d bytes; create the claim again with less",
			c.Spec.Resources.Requests.Storage(), int64(math.MaxInt64))
	case v.Unserved != nil:
		return refuse("Unserved", "%s cannot create this volume: %v", name, v.Unserved)
	}
	if p := refusalOfNode(v, refuse); p.Act != ActNone || v.Missing == nil {
		return p
	}
	p := refuse("Missing", "%s cannot create volumes now: %v", name, v.Missing)
	p.Retry = true
	return p
}

// refusalOfNode is a refusal because of the node.
func refusalOfNode(v *View, refuse func(cause, format string, args ...any) Plan) Plan {
	c, class, name := v.Claim, v.Class, v.Plugin.Name
	if v.Plugin.Node == "" {
		return Plan{Act: ActNone}
	}
	switch selected := c.Annotations[volume.AnnSelectedNode]; {
	case v.Node == nil:
		p := refuse("NoNode", "%s creates volumes on node %q, which does not exist in the cluster; set the controller's --node-name to the name of its node", name, v.Plugin.Node)
		p.Retry = true
		return p
	case selected != "" && selected != v.Plugin.Node:
		p := refuse("OtherNode", "%s creates volumes only on node %q, but the pod was scheduled to %q; restrict the pod, or allowedTopologies of StorageClass %s, to that node",
			name, v.Plugin.Node, selected, class.Name)
		p.GiveBack = true
		return p
	case !volume.Allows(class.AllowedTopologies, v.Node.Labels):
		return refuse("Topology", "%s creates volumes only on node %q, which is not in allowedTopologies of StorageClass %s", name, v.Plugin.Node, class.Name)
	}
	return Plan{Act: ActNone}
}

// tooLarge reports whether a claim requests more bytes than fit the plugin's request. The
// number would turn into any other, even zero.
func tooLarge(claim *corev1.PersistentVolumeClaim) bool {
	asked := volume.Request(claim)
	return asked.CmpInt64(math.MaxInt64) > 0
}

// decidePromised decides for a claim with a promise and without a known volume.
func decidePromised(v *View) Plan {
	c := v.Claim
	switch maker := cmp.Or(c.Annotations[tarnv1.AnnotationPlugin], "an unknown plugin"); {
	case c.Spec.VolumeName == v.VolumeName:
		return Plan{Act: ActFulfil} // it had its volume, which was since removed by force
	case v.Plugin == nil:
		return Plan{Act: ActRefuse, Cause: "NoPlugin", Warning: fmt.Sprintf("%s started to create a volume, but no controller runs it any more; start a controller that runs it", maker)}
	case c.Annotations[tarnv1.AnnotationNode] != v.Plugin.Node:
		return Plan{Act: ActRefuse, Cause: "MadeElsewhere", Warning: fmt.Sprintf(
			"%s started to create a volume on node %q, but the controller now runs on node %q; creation continues when the controller runs on that node again",
			maker, c.Annotations[tarnv1.AnnotationNode], v.Plugin.Node)}
	case v.Missing != nil: // undoing it here would leave the storage behind
		return Plan{Act: ActRefuse, Cause: "Missing", Retry: true, Warning: fmt.Sprintf(
			"%s started to create a volume, but cannot finish or undo it now: %v", maker, v.Missing)}
	case !wanted(v):
		return Plan{Act: ActUndo}
	case refusal(v).Retry:
		return refusal(v)
	case refusal(v).Act != ActNone:
		return Plan{Act: ActUndo} // it was valid when it was promised, but is no longer
	}
	return Plan{Act: ActMake}
}

// decideVolume decides for an existing PersistentVolume.
func decideVolume(v *View, now time.Time) Plan {
	if c := v.Claim; c != nil && promised(c) && (v.Plugin != nil || sameClaim(v.Volume, c)) &&
		(c.Status.Phase == corev1.ClaimBound || c.DeletionTimestamp != nil) {
		// The volume records what was made, even if another claim has it now. The controller
		// waits until the claim is bound: a write in between would only make the binder read
		// again.
		return Plan{Act: ActFulfil}
	}
	if v.Plugin == nil {
		return Plan{Act: ActNone}
	}
	vol := v.Volume
	held := slices.Contains(vol.Finalizers, volume.FinalizerExternal)
	switch {
	case vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		if held {
			return Plan{Act: ActLetGo}
		}
	case released(vol, held) && volume.DeletionProtected(vol):
		// The API server would keep the PersistentVolume, whose storage would then be gone.
		return Plan{Act: ActKeep, Cause: "Protected", Warning: fmt.Sprintf("label %s protects the volume, which is released and has reclaim policy Delete; to lift that: kubectl label persistentvolumes %s %s-",
			tarnv1.LabelDeletionProtection, vol.Name, tarnv1.LabelDeletionProtection)}
	case released(vol, held):
		if why, until := volume.KeptBy(vol, v.Retention, v.Namespace, now); why != "" {
			return Plan{Act: ActRetain, Warning: why, Next: kube.Sooner(until, now.Add(retentionLook))}
		}
		return Plan{Act: ActDelete}
	case !held && vol.DeletionTimestamp == nil:
		// This also holds for a volume without a claim. A volume that returns to a pool gets
		// policy Delete before its next claim, and may be deleted by hand.
		return Plan{Act: ActHold}
	}
	return Plan{Act: ActNone}
}

// released reports whether no claim has a right to a volume any more. A volume without
// claimRef, or reserved for a future claim, is about to be used again. The exception is a
// volume that is being deleted and waits only for its finalizer.
func released(vol *corev1.PersistentVolume, held bool) bool {
	if vol.DeletionTimestamp != nil {
		return held && vol.Status.Phase != corev1.VolumeBound
	}
	return orphaned(vol)
}

// orphaned reports whether a volume was left by its claim, before or after a failed deletion. A
// volume that another controller called Failed does not count, because only that controller
// knows why.
func orphaned(vol *corev1.PersistentVolume) bool {
	return (vol.Status.Phase == corev1.VolumeReleased || calledFailed(vol)) && vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID != ""
}

// calledFailed reports whether the phase was written because a deletion failed. Both binders
// keep that phase while the claim is gone, and replace it when the volume is bound or available
// again.
func calledFailed(vol *corev1.PersistentVolume) bool {
	return vol.Status.Phase == corev1.VolumeFailed && vol.Status.Reason == eventDeleteFailed
}

// sameClaim reports whether a volume points at a claim.
func sameClaim(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID == claim.UID
}
