package volume

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// The names of what a pool makes: PoolPrefix, the UID of its set, and a suffix for the kind.
const (
	PoolPrefix    = "pool-"
	surplusSuffix = "-surplus"
)

// Selects says whether a volume counts in a set.
func Selects(set *tarnv1.PersistentVolumeSet, v *corev1.PersistentVolume) bool {
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(v.Labels))
}

// Passing says whether a volume is entering a pool, leaving one, or waiting to be scrubbed. It then
// points at one of Tarn's own claims, in Tarn's namespace, and no user owns its data.
func Passing(v *corev1.PersistentVolume, namespace string) bool {
	return v.Annotations[tarnv1.AnnotationPoolFilling] != "" || v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == namespace
}

// Surplus is a claim that never exists. To remove a volume, a set points the volume's claimRef at
// it. No claim has the UID of a set.
func Surplus(set *tarnv1.PersistentVolumeSet, namespace string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim",
		Namespace: namespace, Name: PoolPrefix + string(set.UID) + surplusSuffix, UID: set.UID,
	}
}

// GivenUp says whether a volume was given to such a surplus claim.
func GivenUp(v *corev1.PersistentVolume, namespace string) bool {
	ref := v.Spec.ClaimRef
	return ref != nil && ref.Namespace == namespace && strings.HasPrefix(ref.Name, PoolPrefix) && strings.HasSuffix(ref.Name, surplusSuffix)
}
