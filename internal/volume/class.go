package volume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// DefaultClass is the class for claims that set none: the newest of those marked as default, among
// equally old ones the first by name. It is nil if none is marked.
func DefaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, class := range classes {
		if IsDefault(class) && (best == nil || moreDefault(class, best)) {
			best = class
		}
	}
	return best
}

// IsDefault says whether a class is marked as the default.
func IsDefault(class *storagev1.StorageClass) bool {
	return class.Annotations[AnnDefaultClass] == "true" || class.Annotations[AnnBetaDefaultClass] == "true"
}

func moreDefault(a, b *storagev1.StorageClass) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	return a.Name < b.Name
}

// WaitsForConsumer says whether volumes of a class are bound only once a pod that uses them is
// scheduled. A class that does not exist binds at once. A class without a binding mode is an error.
func WaitsForConsumer(class *storagev1.StorageClass) (bool, error) {
	switch {
	case class == nil:
		return false, nil
	case class.VolumeBindingMode == nil:
		return false, fmt.Errorf("StorageClass %q has no volumeBindingMode; create it again with Immediate or WaitForFirstConsumer", class.Name)
	}
	return *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}

// inTree begins the names of plugins built into Kubernetes.
const inTree = "kubernetes.io/"

// migrated maps each plugin built into Kubernetes to the CSI driver that replaced it.
var migrated = map[string]string{
	"kubernetes.io/aws-ebs":         "ebs.csi.aws.com",
	"kubernetes.io/azure-disk":      "disk.csi.azure.com",
	"kubernetes.io/azure-file":      "file.csi.azure.com",
	"kubernetes.io/cinder":          "cinder.csi.openstack.org",
	"kubernetes.io/gce-pd":          "pd.csi.storage.gke.io",
	"kubernetes.io/portworx-volume": "pxd.portworx.com",
	"kubernetes.io/vsphere-volume":  "csi.vsphere.vmware.com",
}

// DriverFor is the name of the provisioner that serves a class: the class's own, or the CSI driver
// that replaced it. Plugins built into Kubernetes that nothing serves any more give false.
func DriverFor(provisioner string) (driver string, ok bool) {
	if driver, moved := migrated[provisioner]; moved {
		return driver, true
	}
	return provisioner, provisioner != "" && !strings.HasPrefix(provisioner, inTree)
}

// MigratedTo is the value that annotation AnnMigratedTo must have on an object made by a
// provisioner. Empty means that the annotation must be absent.
func MigratedTo(provisioner string) string { return migrated[provisioner] }

// ProvisionerOf is the provisioner that a claim was assigned to; empty for none.
func ProvisionerOf(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[AnnProvisioner]; ok {
		return name
	}
	return claim.Annotations[AnnBetaProvisioner]
}

// KeptFinalizers gives the finalizers that a volume must have, and whether it has others now. Only
// those of volumes that plugins built into Kubernetes made dynamically are a binder's business.
func KeptFinalizers(v *corev1.PersistentVolume) (finalizers []string, changed bool) {
	by, dynamic := v.Annotations[AnnProvisionedBy]
	if !dynamic || !strings.HasPrefix(by, inTree) {
		return v.Finalizers, false
	}
	_, moved := migrated[by]
	wanted := !moved && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	has := false
	for _, f := range v.Finalizers {
		switch {
		case f == FinalizerInTree && !wanted, f == FinalizerExternal && !moved:
			changed = true
			continue
		case f == FinalizerInTree:
			has = true
		}
		finalizers = append(finalizers, f)
	}
	// An object that is being deleted takes no new finalizer.
	if wanted && !has && v.DeletionTimestamp == nil {
		return append(finalizers, FinalizerInTree), true
	}
	return finalizers, changed
}

// Allows says whether a node with these labels matches one of the terms of a class's
// allowedTopologies. No terms allow every node.
func Allows(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, has := labels[e.Key]
			return !has || !slices.Contains(e.Values, value)
		})
	})
}
