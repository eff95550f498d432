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

// retentionLook is how often a retention is looked at again: no event of the volume tells
// when its class or its set says another.
const retentionLook = time.Minute

// Act is what a reconcile does; a closed set.
//
//	claim   (given to a plugin) -> Promise -> Make -> (bound) -> Fulfil
//	                                  |         |
//	                                  +-> Undo <+  nobody wants it any more, or the node did not do
//	volume  Hold, or LetGo where its policy is not Delete -> (released) -> Delete
type Act string

// The acts. Each is idempotent and ends in objects from which the next is derived.
const (
	// ActNone: wait for an event.
	ActNone Act = "None"
	// ActRefuse: tell the claim Plan.Warning, and give the choice of the node back where
	// Plan.GiveBack.
	ActRefuse Act = "Refuse"
	// ActPromise: note in the claim that something may have been made for it.
	ActPromise Act = "Promise"
	// ActMake: have the volume made and write its PersistentVolume.
	ActMake Act = "Make"
	// ActUndo: destroy what may have been made, then take the promise back.
	ActUndo Act = "Undo"
	// ActFulfil: the PersistentVolume is there or was there: take the promise off.
	ActFulfil Act = "Fulfil"
	// ActHold: put the finalizer on a volume that is to be destroyed one day.
	ActHold Act = "Hold"
	// ActLetGo: take it off a volume that is not.
	ActLetGo Act = "LetGo"
	// ActKeep: tell the volume Plan.Warning, and leave it.
	ActKeep Act = "Keep"
	// ActRetain: say why the volume is not destroyed yet, and look again at Plan.Next.
	ActRetain Act = "Retain"
	// ActDelete: destroy the volume, then its PersistentVolume.
	ActDelete Act = "Delete"
)

// Plan is what to do about one volume.
type Plan struct {
	Act Act
	// Warning is told to the claim, or by ActKeep and ActRetain to the volume, as an Event. Events that differ in their note alone
	// are merged under the first note, so each Cause is an action of its own.
	Warning, Cause string
	// GiveBack says that the scheduler has to choose another node.
	GiveBack bool
	// Retry says that no event tells when the cause is gone.
	Retry bool
	// Next is when to look again though no event tells; zero: not needed.
	Next time.Time
}

// decide says what the View asks for.
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

// promised says that a volume may have been made for a claim, though it has none yet.
func promised(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, tarnv1.FinalizerInProcess)
}

// wanted says whether the claim waits for this volume. A class that is missing is the
// binder's to tell.
func wanted(v *View) bool {
	c, class := v.Claim, v.Class
	if c.DeletionTimestamp != nil || c.Spec.VolumeName != "" || volume.StateOfClaim(c) == volume.ClaimCompleted || volume.ForPopulator(c) || class == nil ||
		class.Provisioner != v.Plugin.Name || volume.ProvisionerOf(c) != v.Plugin.Name {
		return false
	}
	waits := ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
	return !waits || c.Annotations[volume.AnnSelectedNode] != ""
}

// refusal says why the plugin makes no volume for a claim, ActNone if it does.
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

// refusalOfNode is the part of a refusal that is the node's.
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

// tooLarge says whether a claim asks for more bytes than a plugin can be asked for: their
// number would come out as any other, zero too.
func tooLarge(claim *corev1.PersistentVolumeClaim) bool {
	asked := volume.Request(claim)
	return asked.CmpInt64(math.MaxInt64) > 0
}

// decidePromised treats a claim for which something may have been made, and no volume
// is known.
func decidePromised(v *View) Plan {
	c := v.Claim
	switch maker := cmp.Or(c.Annotations[tarnv1.AnnotationPlugin], "an unknown plugin"); {
	case c.Spec.VolumeName == v.VolumeName:
		return Plan{Act: ActFulfil} // it had its volume, which was removed by force since
	case v.Plugin == nil:
		return Plan{Act: ActRefuse, Cause: "NoPlugin", Warning: fmt.Sprintf("%s started to create a volume, but no controller runs it any more; start a controller that runs it", maker)}
	case c.Annotations[tarnv1.AnnotationNode] != v.Plugin.Node:
		return Plan{Act: ActRefuse, Cause: "MadeElsewhere", Warning: fmt.Sprintf(
			"%s started to create a volume on node %q, but the controller now runs on node %q; creation continues when the controller runs on that node again",
			maker, c.Annotations[tarnv1.AnnotationNode], v.Plugin.Node)}
	case v.Missing != nil: // to undo it here would leave it where it is
		return Plan{Act: ActRefuse, Cause: "Missing", Retry: true, Warning: fmt.Sprintf(
			"%s started to create a volume, but cannot finish or undo it now: %v", maker, v.Missing)}
	case !wanted(v):
		return Plan{Act: ActUndo}
	case refusal(v).Retry:
		return refusal(v)
	case refusal(v).Act != ActNone:
		return Plan{Act: ActUndo} // what was right when it was promised is not any more
	}
	return Plan{Act: ActMake}
}

// decideVolume treats a PersistentVolume that is there.
func decideVolume(v *View, now time.Time) Plan {
	if c := v.Claim; c != nil && promised(c) && (v.Plugin != nil || sameClaim(v.Volume, c)) &&
		(c.Status.Phase == corev1.ClaimBound || c.DeletionTimestamp != nil) {
		// The volume tells what was made, whoever has it now. Not before the claim is
		// bound: a write of ours between those of the binder would only make it read again.
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
		// The API server would keep the volume, which then would stand for nothing.
		return Plan{Act: ActKeep, Cause: "Protected", Warning: fmt.Sprintf("label %s protects the volume, which is released and has reclaim policy Delete; to lift that: kubectl label persistentvolumes %s %s-",
			tarnv1.LabelDeletionProtection, vol.Name, tarnv1.LabelDeletionProtection)}
	case released(vol, held):
		if why, until := volume.KeptBy(vol, v.Retention, v.Namespace, now); why != "" {
			return Plan{Act: ActRetain, Warning: why, Next: kube.Sooner(until, now.Add(retentionLook))}
		}
		return Plan{Act: ActDelete}
	case !held && vol.DeletionTimestamp == nil:
		// Though it is nobody's yet: one that goes back to a pool gets its policy Delete
		// before anybody has it, and may be deleted by hand.
		return Plan{Act: ActHold}
	}
	return Plan{Act: ActNone}
}

// released says whether nobody has a claim to a volume any more. One whose claimRef
// was cleared, or names a claim yet to come, is about to be used again; unless it is
// being deleted, and waits for its finalizer alone.
func released(vol *corev1.PersistentVolume, held bool) bool {
	if vol.DeletionTimestamp != nil {
		return held && vol.Status.Phase != corev1.VolumeBound
	}
	return orphaned(vol)
}

// orphaned says that a volume is what its claim has left behind, whether nothing was
// tried yet or has failed. What others call Failed is not: only they know why.
func orphaned(vol *corev1.PersistentVolume) bool {
	return (vol.Status.Phase == corev1.VolumeReleased || calledFailed(vol)) && vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID != ""
}

// calledFailed says that the phase is the one written where a deletion has failed. Both
// binders leave it while the claim is gone, and write another when the volume is bound,
// or offered, again.
func calledFailed(vol *corev1.PersistentVolume) bool {
	return vol.Status.Phase == corev1.VolumeFailed && vol.Status.Reason == eventDeleteFailed
}

// sameClaim says whether a volume points at a claim.
func sameClaim(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID == claim.UID
}
