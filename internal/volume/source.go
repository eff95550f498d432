package volume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// SourceClaim is the kind of a source that is a claim.
const SourceClaim = "PersistentVolumeClaim"

// Source is the data source of a claim. Its namespace is that of the claim unless the claim names
// another one. ok is false if the claim has none.
func Source(claim *corev1.PersistentVolumeClaim) (source corev1.TypedObjectReference, ok bool) {
	switch spec := claim.Spec; {
	case spec.DataSourceRef != nil:
		source = *spec.DataSourceRef.DeepCopy()
	case spec.DataSource != nil:
		source = corev1.TypedObjectReference{APIGroup: spec.DataSource.APIGroup, Kind: spec.DataSource.Kind, Name: spec.DataSource.Name}
	default:
		return source, false
	}
	if ptr.Deref(source.Namespace, "") == "" {
		source.Namespace = ptr.To(claim.Namespace)
	}
	return source, true
}

// CloneMisfit says why the volume of a claim cannot be copied for another claim; it is empty if it
// can. source is the claim to copy and vol its volume, nil if there is none. The conditions and
// their order are those of the external provisioner.
func CloneMisfit(claim, source *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume, provisioner string) string {
	from, _ := Source(claim)
	if source == nil {
		return fmt.Sprintf("error getting PVC %s (namespace %q) from api server: there is none; create it, or create this claim again with another data source", from.Name, claim.Namespace)
	}
	request, has := Request(claim), Request(source)
	limit, limited := claim.Spec.Resources.Limits[corev1.ResourceStorage]
	switch {
	case source.DeletionTimestamp != nil:
		return fmt.Sprintf("the PVC DataSource %s is currently being deleted", source.Name)
	case source.Status.Phase != corev1.ClaimBound:
		return fmt.Sprintf("the PVC DataSource %s must have a status of Bound.  Got %s", source.Name, source.Status.Phase)
	case ClassOf(source) == "":
		return fmt.Sprintf("the source PVC (%s) storageclass cannot be empty", source.Name)
	case request.Cmp(has) < 0:
		return fmt.Sprintf("error, new PVC request must be greater than or equal in size to the specified PVC data source, requested %s but source is %s", request.String(), has.String())
	case vol == nil, vol.Spec.CSI == nil, vol.DeletionTimestamp != nil, vol.Status.Phase != corev1.VolumeBound,
		vol.Spec.ClaimRef == nil || vol.Spec.ClaimRef.UID != source.UID:
		return fmt.Sprintf("claim %s in dataSource not bound or invalid", source.Name)
	case vol.Spec.CSI.Driver != provisioner:
		return fmt.Sprintf("claim in dataSource not bound or invalid: the volume of %s is of driver %s, and only a class of that driver can copy it", source.Name, vol.Spec.CSI.Driver)
	case ModeOf(claim) != ModeOf(source):
		return fmt.Sprintf("the source PVC and destination PVCs must have the same volume mode for cloning.  Source is %s, and this claim asks for %s", ModeOf(source), ModeOf(claim))
	case limited && Bytes(limit) < Bytes(vol.Spec.Capacity[corev1.ResourceStorage]):
		return fmt.Sprintf("the volume of %s has %s, more than spec.resources.limits.storage of this claim, %s; create the claim again with a larger limit, or without one",
			source.Name, Size(Bytes(vol.Spec.Capacity[corev1.ResourceStorage])), limit.String())
	}
	return ""
}

// ClonedFrom is the source of a record whose volume is copied from a claim with a volume. node is
// the only node that can use the volume, empty if others can.
func ClonedFrom(source *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume, node string) *tarnv1.PavVolumeSource {
	return &tarnv1.PavVolumeSource{
		Kind: SourceClaim, Namespace: source.Namespace, Name: source.Name, UID: source.UID,
		Storage: vol.Name, Handle: vol.Spec.CSI.VolumeHandle, Capacity: Bytes(vol.Spec.Capacity[corev1.ResourceStorage]),
		VolumeMode: ModeOf(source), NodeName: node, Parameters: vol.Spec.CSI.VolumeAttributes,
	}
}

// SourceStorage is the field by which the API server selects the PavVolumes that copy a storage.
const SourceStorage = "spec.source.storage"

// Copies says whether a creation may be reading the storage that a record names as its source.
func Copies(record *tarnv1.PavVolume) bool {
	switch record.Status.Phase {
	case tarnv1.VolumeValidating, tarnv1.VolumeCreating, tarnv1.VolumeUndoing:
		return record.Spec.Source != nil
	}
	return false
}
