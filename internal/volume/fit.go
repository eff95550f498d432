package volume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// Misfit is a reason why a volume cannot serve a claim; empty means that it can.
type Misfit string

// The reasons, in the order of the checks. A later reason means a closer match.
const (
	Fits             Misfit = ""
	MisfitTaken      Misfit = "Taken"           // it belongs to another claim
	MisfitDeleting   Misfit = "BeingDeleted"    //
	MisfitSource     Misfit = "DataSource"      // the claim wants data that a free volume does not have
	MisfitClass      Misfit = "Class"           //
	MisfitMode       Misfit = "VolumeMode"      //
	MisfitAttributes Misfit = "AttributesClass" //
	MisfitAccess     Misfit = "AccessModes"     //
	MisfitCapacity   Misfit = "Capacity"        // too small
	MisfitSelector   Misfit = "Selector"        //
	MisfitPhase      Misfit = "Phase"           // not Available yet, or no longer
)

// order ranks the misfits for Nearer.
var order = []Misfit{
	MisfitTaken, MisfitDeleting, MisfitSource, MisfitClass, MisfitMode, MisfitAttributes, MisfitAccess, MisfitCapacity, MisfitSelector, MisfitPhase, Fits,
}

// Nearer says whether a volume that fails by m is a closer match than a volume that fails by other.
func (m Misfit) Nearer(other Misfit) bool { return rank(m) > rank(other) }

func rank(m Misfit) int {
	for i, known := range order {
		if m == known {
			return i
		}
	}
	return -1
}

// BoundTo says whether a volume points at a claim: by name, and by UID if the claimRef has one.
func BoundTo(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := v.Spec.ClaimRef
	return ref != nil && ref.Name == claim.Name && ref.Namespace == claim.Namespace && (ref.UID == "" || ref.UID == claim.UID)
}

// HeldBy says whether a volume points at a claim by its UID.
func HeldBy(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return BoundTo(v, claim) && v.Spec.ClaimRef.UID == claim.UID
}

// Capacity is the size of a volume, or nil if it has none. A size of more than 40 digits counts as
// 10^41 bytes.
func Capacity(v *corev1.PersistentVolume) *resource.Quantity {
	q, ok := v.Spec.Capacity[corev1.ResourceStorage]
	if !ok {
		return nil
	}
	q = bounded(q, mostDigits+1)
	return &q
}

// Request is the size a claim asks for; zero if it sets none. A size of more than 40 digits counts
// as 10^42 bytes, which no volume has.
func Request(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return bounded(claim.Spec.Resources.Requests[corev1.ResourceStorage], mostDigits+2)
}

// BeyondLimit gives the limit of a claim that requests more than its limit, compared in whole
// bytes. No volume fits such a claim, and only its author can correct it.
func BeyondLimit(claim *corev1.PersistentVolumeClaim) (limit resource.Quantity, beyond bool) {
	limit, limited := claim.Spec.Resources.Limits[corev1.ResourceStorage]
	return limit, limited && Bytes(claim.Spec.Resources.Requests[corev1.ResourceStorage]) > Bytes(limit)
}

// Selector is the label selector of a claim. A claim without a selector matches every volume. A
// selector that cannot be parsed is an error.
func Selector(claim *corev1.PersistentVolumeClaim) (labels.Selector, error) {
	if claim.Spec.Selector == nil {
		return labels.Everything(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector of claim %s/%s is not valid: %w; create the claim again with a correct selector", claim.Namespace, claim.Name, err)
	}
	return selector, nil
}

// Free says whether a volume can be given to any claim that it fits.
func Free(v *corev1.PersistentVolume) bool {
	return v.Spec.ClaimRef == nil && v.DeletionTimestamp == nil && v.Status.Phase == corev1.VolumeAvailable && Capacity(v) != nil
}

// Match says why a free volume cannot be chosen for a claim that names no volume.
func Match(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, selector labels.Selector) Misfit {
	switch {
	case v.Spec.ClaimRef != nil:
		return MisfitTaken
	case v.DeletionTimestamp != nil:
		return MisfitDeleting
	case HasSource(claim):
		return MisfitSource
	}
	if m := Meets(v, claim, selector); m != Fits {
		return m
	}
	if v.Status.Phase != corev1.VolumeAvailable {
		return MisfitPhase
	}
	return Fits
}

// HasSource says whether a claim asks for a volume with data. Such a claim gets no free volume. It
// takes only a volume made for it, one that points at it, or one that it names.
func HasSource(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil
}

// ForPopulator says whether a claim's data comes from an object that only a volume populator knows:
// of a kind other than VolumeSnapshot and PersistentVolumeClaim.
func ForPopulator(claim *corev1.PersistentVolumeClaim) bool {
	from := claim.Spec.DataSourceRef
	if from == nil || from.Kind == "" {
		return false
	}
	switch group := ptr.Deref(from.APIGroup, ""); from.Kind {
	case "PersistentVolumeClaim":
		return group != ""
	case "VolumeSnapshot":
		return group != "snapshot.storage.k8s.io"
	}
	return true
}

// Meets says why a volume does not satisfy a claim, even if another claim has it. It checks what
// Suits checks, then the claim's selector.
func Meets(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, selector labels.Selector) Misfit {
	if m := Suits(v, claim); m != Fits {
		return m
	}
	if !selector.Matches(labels.Set(v.Labels)) {
		return MisfitSelector
	}
	return Fits
}

// Suits says why a volume cannot satisfy a claim, even if another claim has it. It checks class,
// mode, attributes class, access modes and size.
func Suits(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Misfit {
	if ClassOfVolume(v) != ClassOf(claim) {
		return MisfitClass
	}
	return Holds(v, claim)
}

// Reserved says why a volume that points at a claim cannot be chosen for it when the claim names
// none. Class, labels and phase do not matter: the author of the claimRef has chosen.
func Reserved(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Misfit {
	switch {
	case !BoundTo(v, claim):
		return MisfitTaken
	case v.DeletionTimestamp != nil:
		return MisfitDeleting
	}
	return Holds(v, claim)
}

// Named says why a free volume cannot be bound to the claim that names it. Labels and phase do not
// matter.
func Named(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Misfit {
	if v.DeletionTimestamp != nil {
		return MisfitDeleting
	}
	return Suits(v, claim)
}

// Holds says why a volume cannot store a claim's data. It checks mode, attributes class, access
// modes and size. Sizes of up to 40 digits are compared exactly.
func Holds(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Misfit {
	capacity, request := Capacity(v), Request(claim)
	switch {
	case ModeOfVolume(v) != ModeOf(claim):
		return MisfitMode
	case AttributesClassOfVolume(v) != AttributesClassOf(claim):
		return MisfitAttributes
	case !AccessOf(v.Spec.AccessModes).Has(AccessOf(claim.Spec.AccessModes)):
		return MisfitAccess
	case capacity == nil || capacity.Cmp(request) < 0:
		return MisfitCapacity
	}
	return Fits
}

// Explain says in words how a volume and a claim do not fit, with the values of both.
func Explain(m Misfit, v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	switch m {
	case Fits:
		return fmt.Sprintf("volume %q fits", v.Name)
	case MisfitTaken:
		return fmt.Sprintf("volume %q belongs to claim %s", v.Name, describeRef(v.Spec.ClaimRef))
	case MisfitDeleting:
		return fmt.Sprintf("volume %q is being deleted", v.Name)
	case MisfitSource:
		return fmt.Sprintf("volume %q was not created from the claim's data source", v.Name)
	case MisfitClass:
		return fmt.Sprintf("volume %q has class %q, the claim asks for %q", v.Name, ClassOfVolume(v), ClassOf(claim))
	case MisfitMode:
		return fmt.Sprintf("volume %q has volumeMode %s, the claim asks for %s", v.Name, ModeOfVolume(v), ModeOf(claim))
	case MisfitAttributes:
		return fmt.Sprintf("volume %q has volumeAttributesClassName %q, the claim asks for %q", v.Name, AttributesClassOfVolume(v), AttributesClassOf(claim))
	case MisfitAccess:
		return fmt.Sprintf("volume %q has access modes %s, the claim asks for %s", v.Name, AccessOf(v.Spec.AccessModes), AccessOf(claim.Spec.AccessModes))
	case MisfitCapacity:
		return fmt.Sprintf("volume %q has %s, the claim asks for %s", v.Name, describeSize(Capacity(v)), describeRequest(claim))
	case MisfitSelector:
		return fmt.Sprintf("the labels of volume %q do not match the claim's selector", v.Name)
	case MisfitPhase:
		return fmt.Sprintf("volume %q is %s, not Available", v.Name, describePhase(v))
	}
	return fmt.Sprintf("volume %q does not fit: %s", v.Name, m)
}

func describeRef(ref *corev1.ObjectReference) string {
	if ref == nil {
		return "none"
	}
	return fmt.Sprintf("%s/%s", ref.Namespace, ref.Name)
}

func describeSize(q *resource.Quantity) string {
	if q == nil {
		return "no capacity"
	}
	return q.String()
}

func describeRequest(claim *corev1.PersistentVolumeClaim) string {
	request := Request(claim)
	return request.String()
}

func describePhase(v *corev1.PersistentVolume) string {
	if v.Status.Phase == "" {
		return "without a phase"
	}
	return string(v.Status.Phase)
}
