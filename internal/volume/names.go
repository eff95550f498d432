package volume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Kubernetes' own annotations of claims and volumes. If no value is named here, only their presence
// counts, and binders write AnnYes.
const (
	// AnnBindCompleted marks a claim that was bound once.
	AnnBindCompleted = "pv.kubernetes.io/bind-completed"
	// AnnBoundByController marks a claim or volume whose side of the binding was written by a
	// binder or the scheduler, not by a person.
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"
	// AnnProvisionedBy names the provisioner that made a volume.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnProvisioner and AnnBetaProvisioner name the provisioner that must make a claim's volume.
	// Both are written; the first has priority when read.
	AnnProvisioner     = "volume.kubernetes.io/storage-provisioner"
	AnnBetaProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnSelectedNode names the node that the scheduler has chosen for a claim.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnMigratedTo names the CSI driver that took over from the plugin named by the
	// provisioner's annotation.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnPreResizeCapacity is the capacity that a claim must report while its volume grows; it is
	// on the volume.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnDefaultClass and AnnBetaDefaultClass mark a class as the default by the
	// value "true" alone.
	AnnDefaultClass     = "storageclass.kubernetes.io/is-default-class"
	AnnBetaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"

	// AnnYes is the value of annotations for which only the presence counts.
	AnnYes = "yes"
)

// Finalizers that keep a volume until its storage is deleted.
const (
	// FinalizerInTree is set by a binder, on volumes of provisioners built into Kubernetes.
	FinalizerInTree = "kubernetes.io/pv-controller"
	// FinalizerExternal is set by an external provisioner.
	FinalizerExternal = "external-provisioner.volume.kubernetes.io/finalizer"
)

// ClassOf is the class of a claim, empty for none. The beta annotation overrides the field, even if
// it is empty.
func ClassOf(claim *corev1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return ptr.Deref(claim.Spec.StorageClassName, "")
}

// HasClass says whether a claim sets a class. An empty class is a class, too: it asks for volumes
// without one, and never gets the default.
func HasClass(claim *corev1.PersistentVolumeClaim) bool {
	_, annotated := claim.Annotations[corev1.BetaStorageClassAnnotation]
	return annotated || claim.Spec.StorageClassName != nil
}

// ClassOfVolume is the class of a volume, empty for none.
func ClassOfVolume(v *corev1.PersistentVolume) string {
	if class, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return v.Spec.StorageClassName
}

// AttributesClassOf gives the name of a claim's VolumeAttributesClass, empty for none.
func AttributesClassOf(claim *corev1.PersistentVolumeClaim) string {
	return ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
}

// AttributesClassOfVolume gives the name of a volume's VolumeAttributesClass.
func AttributesClassOfVolume(v *corev1.PersistentVolume) string {
	return ptr.Deref(v.Spec.VolumeAttributesClassName, "")
}

// ModeOf is the volume mode a claim asks for.
func ModeOf(claim *corev1.PersistentVolumeClaim) corev1.PersistentVolumeMode {
	return ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
}

// ModeOfVolume is the mode of a volume.
func ModeOfVolume(v *corev1.PersistentVolume) corev1.PersistentVolumeMode {
	return ptr.Deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
}
