package volume

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// memoryBytes limits the size of a remembered claim. All annotations of an object together may take
// 256 KiB.
const memoryBytes = 32 << 10

// ClaimMemory is what is needed to create a claim again.
type ClaimMemory struct {
	Labels      map[string]string                `json:"labels,omitempty"`
	Annotations map[string]string                `json:"annotations,omitempty"`
	Spec        corev1.PersistentVolumeClaimSpec `json:"spec"`
	// Cut says that labels and annotations were too large to be kept.
	Cut bool `json:"cut,omitempty"`
	// Created is when the claim was created: its namespace is older.
	Created metav1.Time `json:"created,omitzero"`
}

// forgotten are annotations that a restored claim must not get. Binders, provisioners and kubectl
// write them, or they change every few seconds. One lets an App delete the claim if its deploy no
// longer mounts it.
var forgotten = map[string]bool{
	"kubectl.kubernetes.io/last-applied-configuration": true,
	"control-plane.alpha.kubernetes.io/leader":         true,
	tarnv1.AnnotationPlugin:                            true,
	tarnv1.AnnotationNode:                              true,
	tarnv1.AnnotationPlace:                             true,
	tarnv1.AnnotationMadeFor:                           true,
}

func isForgotten(name string) bool {
	if name == corev1.BetaStorageClassAnnotation {
		return false // it is the claim's class
	}
	return forgotten[name] || strings.HasPrefix(name, "pv.kubernetes.io/") ||
		strings.HasPrefix(name, "volume.kubernetes.io/") ||
		strings.HasPrefix(name, "volume.beta.kubernetes.io/") || strings.HasPrefix(name, "volume.alpha.kubernetes.io/")
}

// RememberClaim gives the value of AnnotationClaim. The same claim always gives the same text.
func RememberClaim(claim *corev1.PersistentVolumeClaim) (string, error) {
	memory := ClaimMemory{Labels: claim.Labels, Annotations: maps.Clone(claim.Annotations), Spec: *claim.Spec.DeepCopy(), Created: claim.CreationTimestamp}
	maps.DeleteFunc(memory.Annotations, func(name, _ string) bool { return isForgotten(name) })
	memory.Spec.VolumeName = ""
	data, err := json.Marshal(memory)
	if err == nil && len(data) > memoryBytes {
		class, has := memory.Annotations[corev1.BetaStorageClassAnnotation]
		memory.Labels, memory.Annotations, memory.Cut = nil, nil, true
		if has {
			memory.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: class}
		}
		data, err = json.Marshal(memory)
	}
	if err != nil {
		return "", fmt.Errorf("remembering claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return string(data), nil
}

// SameMemory says whether two states of a claim give the same memory: they differ only in what
// binders and provisioners write.
func SameMemory(a, b *corev1.PersistentVolumeClaim) bool {
	one, other := a.Spec, b.Spec
	one.VolumeName, other.VolumeName = "", ""
	sizes, others := one.Resources, other.Resources
	one.Resources, other.Resources = corev1.VolumeResourceRequirements{}, corev1.VolumeResourceRequirements{}
	return sameSizes(sizes.Requests, others.Requests) && sameSizes(sizes.Limits, others.Limits) && maps.Equal(a.Labels, b.Labels) && keeps(a.Annotations, b.Annotations) && keeps(b.Annotations, a.Annotations) &&
		equality.Semantic.DeepEqual(one, other)
}

// sameSizes compares sizes as they are written: a claim may be changed to ask for
// 1e30000000, and comparing that as a number takes seconds.
func sameSizes(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.String() == y.String() })
}

// keeps says whether others contains every remembered annotation of some, with the same value.
func keeps(some, others map[string]string) bool {
	for name, value := range some {
		if other, has := others[name]; !isForgotten(name) && (!has || other != value) {
			return false
		}
	}
	return true
}

// RememberedClaim reads the claim stored in a volume's AnnotationClaim. It is nil if the volume has
// no such annotation.
func RememberedClaim(v *corev1.PersistentVolume) (*ClaimMemory, error) {
	text := v.Annotations[tarnv1.AnnotationClaim]
	if text == "" {
		return nil, nil
	}
	memory := &ClaimMemory{}
	if err := json.Unmarshal([]byte(text), memory); err != nil {
		return nil, fmt.Errorf("annotation %s of PersistentVolume %s is not a claim: %w; remove it, and the claim is restored from the volume alone", tarnv1.AnnotationClaim, v.Name, err)
	}
	return memory, nil
}
