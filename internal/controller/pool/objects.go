package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/volume"
)

// hashOf identifies a template by the fields that affect its volumes. A new field of the API,
// defaulted in every existing set, must not replace every spare.
func hashOf(t *tarnv1.PersistentVolumeSetTemplate) string {
	data, err := json.Marshal(tarnv1.PersistentVolumeSetTemplate{
		Metadata: tarnv1.PersistentVolumeSetTemplateMetadata{Labels: t.Metadata.Labels, Annotations: t.Metadata.Annotations},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: t.Spec.StorageClassName, Capacity: t.Spec.Capacity, AccessModes: t.Spec.AccessModes,
			VolumeMode: t.Spec.VolumeMode, VolumeAttributesClassName: t.Spec.VolumeAttributesClassName,
			PersistentVolumeReclaimPolicy: t.Spec.PersistentVolumeReclaimPolicy, MountOptions: t.Spec.MountOptions,
			NodeAffinity: t.Spec.NodeAffinity,
		},
		TopologyKey: t.TopologyKey, Tolerations: t.Tolerations,
	})
	if err != nil { // impossible: the type has no channels and functions
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func labelsOf(set *tarnv1.PersistentVolumeSet) map[string]string {
	return map[string]string{tarnv1.LabelPool: set.Name, tarnv1.LabelPoolUID: string(set.UID)}
}

func owner(set *tarnv1.PersistentVolumeSet) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: tarnv1.GroupVersion.String(), Kind: "PersistentVolumeSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true),
	}}
}

func fillerClassName(set *tarnv1.PersistentVolumeSet) string { return "tarn-pool-" + set.Name }

// fillerClass is the class of a set's filler claims. Only its name and policy differ from the
// template's class. With policy Delete, the provisioner destroys a volume whose filler claim
// ends too early, so it does not leak.
func fillerClass(set *tarnv1.PersistentVolumeSet, class *storagev1.StorageClass) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: fillerClassName(set), Labels: labelsOf(set), OwnerReferences: owner(set)},
		Provisioner: class.Provisioner, Parameters: class.Parameters, MountOptions: class.MountOptions,
		AllowedTopologies: class.AllowedTopologies, VolumeBindingMode: class.VolumeBindingMode,
		ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete), AllowVolumeExpansion: ptr.To(false),
	}
}

// madeFor reports whether a class was made for a set.
func madeFor(set *tarnv1.PersistentVolumeSet, class *storagev1.StorageClass) bool {
	return class.Labels[tarnv1.LabelPoolUID] == string(set.UID)
}

func sameClass(a, b *storagev1.StorageClass) bool {
	return a.Provisioner == b.Provisioner && equality.Semantic.DeepEqual(a.Parameters, b.Parameters) &&
		equality.Semantic.DeepEqual(a.MountOptions, b.MountOptions) && equality.Semantic.DeepEqual(a.AllowedTopologies, b.AllowedTopologies) &&
		waits(a) == waits(b)
}

// waits reports whether volumes of a class are created where their first consumer runs.
func waits(class *storagev1.StorageClass) bool {
	return ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}

// fillerClaim requests the volume of a slot. domain is the preferred value of the template's
// topologyKey; empty means any.
func fillerClaim(v *View, slot int, domain string) *corev1.PersistentVolumeClaim {
	set, spec := v.Set, v.Set.Spec.Template.Spec
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.Namespace, Name: fillerName(set, slot),
			Labels: labelsOf(set), OwnerReferences: owner(set),
			Annotations: map[string]string{tarnv1.AnnotationPoolTemplate: hashOf(&set.Spec.Template)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(fillerClassName(set)),
			AccessModes:      spec.AccessModes, VolumeMode: spec.VolumeMode, VolumeAttributesClassName: spec.VolumeAttributesClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: spec.Capacity[corev1.ResourceStorage]},
			},
		},
	}
	if domain != "" {
		claim.Annotations[tarnv1.AnnotationPoolTopology] = domain
	}
	return claim
}

// fillerPod is the first consumer of a claim: it makes the scheduler choose the node for the
// claim's volume. Its container does nothing and need not start.
func fillerPod(v *View, claim *corev1.PersistentVolumeClaim) *corev1.Pod {
	labels := labelsOf(v.Set)
	labels[tarnv1.LabelStep] = string(tarnv1.StepFilling)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, Labels: labels, OwnerReferences: owner(v.Set)},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			Affinity: affinity(v, claim), Tolerations: v.Set.Spec.Template.Tolerations,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65534), RunAsGroup: ptr.To[int64](65534),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "wait", Image: v.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{{Name: "spare", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}},
		},
	}
}

// affinity restricts a filler pod to the template's nodes, and prefers the domain of its claim.
// A full domain therefore does not block the pool.
func affinity(v *View, claim *corev1.PersistentVolumeClaim) *corev1.Affinity {
	var a corev1.NodeAffinity
	if n := v.Set.Spec.Template.Spec.NodeAffinity; n != nil {
		a.RequiredDuringSchedulingIgnoredDuringExecution = n.Required
	}
	if domain := claim.Annotations[tarnv1.AnnotationPoolTopology]; domain != "" && v.Set.Spec.Template.TopologyKey != "" {
		a.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: v.Set.Spec.Template.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{domain},
			}}},
		}}
	}
	return &corev1.Affinity{NodeAffinity: &a}
}

// mark prepares a volume for the deletion of its filler claim.
func mark(v *View, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	vol, t := vol.DeepCopy(), v.Set.Spec.Template
	vol.Labels, vol.Annotations = merge(vol.Labels, t.Metadata.Labels), merge(vol.Annotations, t.Metadata.Annotations)
	policy := t.Spec.PersistentVolumeReclaimPolicy
	if policy == "" {
		policy = ptr.Deref(v.Class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	}
	vol.Annotations[tarnv1.AnnotationPoolUID] = string(v.Set.UID)
	vol.Annotations[tarnv1.AnnotationPoolTemplate] = claim.Annotations[tarnv1.AnnotationPoolTemplate]
	vol.Annotations[tarnv1.AnnotationPoolFilling] = string(claim.UID)
	vol.Annotations[tarnv1.AnnotationPoolPolicy] = string(policy)
	if domain := v.domainOf(claim); domain != "" {
		vol.Annotations[tarnv1.AnnotationPoolTopology] = domain
	}
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	vol.Spec.StorageClassName = t.Spec.StorageClassName
	if len(t.Spec.MountOptions) > 0 {
		vol.Spec.MountOptions = t.Spec.MountOptions
	}
	return vol
}

func merge(base, more map[string]string) map[string]string {
	merged := map[string]string{}
	maps.Copy(merged, base)
	maps.Copy(merged, more)
	return merged
}

// free clears the claimRef of a volume, and records when.
func free(vol *corev1.PersistentVolume, now time.Time) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	vol.Spec.ClaimRef = nil
	vol.Annotations[tarnv1.AnnotationPoolUnused] = now.UTC().Format(time.RFC3339)
	delete(vol.Annotations, volume.AnnBoundByController)
	return vol
}

// settle ends the way into the pool: the volume gets its intended policy. The time since when
// it is unused is known only if it became Available for the first time.
func settle(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	if policy := vol.Annotations[tarnv1.AnnotationPoolPolicy]; vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && policy != "" {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(policy)
	}
	if justFreed(vol) {
		vol.Annotations[tarnv1.AnnotationPoolUnused] = vol.Status.LastPhaseTransitionTime.UTC().Format(time.RFC3339)
	} else {
		delete(vol.Annotations, tarnv1.AnnotationPoolUnused)
	}
	unmark(vol)
	return vol
}

// recall returns a volume to its state before it was marked. Its provisioner destroys it when
// its filler claim is deleted.
func recall(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	unmark(vol)
	return vol
}

// keep lets a volume outlive the claim that it is bound to.
func keep(vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	vol = vol.DeepCopy()
	vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	return vol
}

func unmark(vol *corev1.PersistentVolume) {
	delete(vol.Annotations, tarnv1.AnnotationPoolFilling)
	delete(vol.Annotations, tarnv1.AnnotationPoolPolicy)
}

// giveUp points the claimRef of a volume at a claim that does not exist. From then on no claim
// can draw the volume, and it counts as released. If no claim has used it since it was made or
// recycled, it holds no data and gets policy Delete. Otherwise its own policy decides. Its
// provisioner destroys it, or finish reports what stays of it.
func giveUp(v *View, vol *corev1.PersistentVolume) *corev1.PersistentVolume {
	ours := madeBy(v.Set, vol)
	vol = vol.DeepCopy()
	if ours && (unused(vol) || isFilling(vol) || emptied(vol)) {
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	}
	unmark(vol)
	vol.Spec.ClaimRef = volume.Surplus(v.Set, v.Namespace)
	return vol
}

// whatStays names the storage of a volume that no provisioner destroys. Once the object is
// deleted, nothing else records it.
func whatStays(v *View, vol *corev1.PersistentVolume) action.Emit {
	why := "no provisioner deletes it"
	if policy := vol.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimDelete {
		why = fmt.Sprintf("its reclaim policy is %s and it may hold data", policy)
	}
	return v.kept("spare volume %s is deleted, but its storage is kept, because %s; delete the storage by hand: %s", vol.Name, why, storageOf(vol))
}

// storageOf describes the storage behind a volume.
func storageOf(vol *corev1.PersistentVolume) string {
	switch s := vol.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		return fmt.Sprintf("driver %s, handle %q", s.CSI.Driver, s.CSI.VolumeHandle)
	case s.Local != nil:
		return "local path " + s.Local.Path + onNode(vol)
	case s.HostPath != nil:
		return "host path " + s.HostPath.Path + onNode(vol)
	case s.NFS != nil:
		return "NFS export " + s.NFS.Server + ":" + s.NFS.Path
	default:
		data, err := json.Marshal(s)
		if err != nil { // impossible: the type has no channels and functions
			return ""
		}
		return "source " + string(data)
	}
}

// onNode names the node of a volume that one of Tarn's plugins has made there.
func onNode(vol *corev1.PersistentVolume) string {
	if node := vol.Annotations[tarnv1.AnnotationNode]; node != "" {
		return " on node " + node
	}
	return ""
}

// madeBy reports whether a volume was made for a set.
func madeBy(set *tarnv1.PersistentVolumeSet, vol *corev1.PersistentVolume) bool {
	return vol.Annotations[tarnv1.AnnotationPoolUID] == string(set.UID)
}
