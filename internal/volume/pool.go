package volume

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// What a pool makes is named PoolPrefix, the uid of its set, and what it is.
const (
	PoolPrefix    = "pool-"
	surplusSuffix = "-surplus"
)

// Selects says whether a volume counts in a set.
func Selects(set *tarnv1.PersistentVolumeSet, v *corev1.PersistentVolume) bool {
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(v.Labels))
}

// Passing says that a volume is being added to a pool or out of one, or to be scrubbed:
// the claim it points at is one of Tarn's own, in its namespace, and its data nobody's.
func Passing(v *corev1.PersistentVolume, namespace string) bool {
	return v.Annotations[tarnv1.AnnotationPoolFilling] != "" || v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == namespace
}

// Surplus is the claim that never existed to which a set gives a volume that has to go.
// No claim has the uid of a set.
func Surplus(set *tarnv1.PersistentVolumeSet, namespace string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim",
		Namespace: namespace, Name: PoolPrefix + string(set.UID) + surplusSuffix, UID: set.UID,
	}
}

// GivenUp says that a volume was given to a claim of that kind.
func GivenUp(v *corev1.PersistentVolume, namespace string) bool {
	ref := v.Spec.ClaimRef
	return ref != nil && ref.Namespace == namespace && strings.HasPrefix(ref.Name, PoolPrefix) && strings.HasSuffix(ref.Name, surplusSuffix)
}
