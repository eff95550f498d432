package pavvolume

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// volumeName is the name of a claim's record and volume.
func volumeName(uid types.UID) string { return "pvc-" + string(uid) }

func claimUID(volumeName string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(volumeName, "pvc-")
	return types.UID(uid), ok && uid != ""
}

// provisionerName is the provisioner that the binder called, empty if it has not called one.
func provisionerName(claim *corev1.PersistentVolumeClaim) string {
	if name := claim.Annotations[volume.AnnProvisioner]; name != "" {
		return name
	}
	return claim.Annotations[volume.AnnBetaProvisioner]
}

// mayBeOurs says whether a provisioner's name may be a PavProvisioner's, which is a DNS label. Most
// names of others contain a dot.
func mayBeOurs(provisioner string) bool { return len(validation.IsDNS1123Label(provisioner)) == 0 }

// newRecord builds the PavVolume of a claim.
func newRecord(v *View) (*tarnv1.PavVolume, error) {
	claim, class := v.Claim, v.Class
	claimJSON, err := steppod.SnapshotClaim(claim)
	if err != nil {
		return nil, err
	}
	classJSON, err := steppod.SnapshotClass(class)
	if err != nil {
		return nil, err
	}
	record := &tarnv1.PavVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:       v.Name,
			Labels:     map[string]string{tarnv1.LabelProvisioner: v.Provisioner.Name},
			Finalizers: []string{tarnv1.FinalizerRecord},
		},
		Spec: tarnv1.PavVolumeSpec{
			Provisioner:          tarnv1.ProvisionerReference{Name: v.Provisioner.Name, UID: v.Provisioner.UID},
			Claim:                tarnv1.ClaimReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			VolumeMode:           ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem),
			AccessModes:          claim.Spec.AccessModes,
			WaitsForNode:         ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer,
			RequestedMinCapacity: volume.Bytes(claim.Spec.Resources.Requests[corev1.ResourceStorage]),
			ClaimSnapshot:        apiextensionsv1.JSON{Raw: claimJSON},
			ClassSnapshot:        apiextensionsv1.JSON{Raw: classJSON},
		},
	}
	if s := v.Source; s != nil {
		record.Spec.Source = volume.ClonedFrom(s.claim, s.volume, s.node)
		record.Spec.RequestedMinCapacity = max(record.Spec.RequestedMinCapacity, s.capacity())
	}
	if limit, ok := claim.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
		record.Spec.RequestedMaxCapacity = ptr.To(volume.Bytes(limit))
	}
	return record, nil
}

// newVolume builds the PersistentVolume of a record in phase Created. It reads the class from the
// record's snapshot, as the class itself may be gone.
func newVolume(record *tarnv1.PavVolume) (*corev1.PersistentVolume, error) {
	class, err := classOf(record)
	if err != nil {
		return nil, err
	}
	secret, err := secretOf(record, class)
	if err != nil {
		return nil, err
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        record.Name,
			Annotations: map[string]string{volume.AnnProvisionedBy: record.Spec.Provisioner.Name, tarnv1.AnnotationRecord: string(record.UID)},
			Finalizers:  []string{volume.FinalizerExternal},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(record.Status.Capacity, resource.BinarySI)},
			AccessModes:                   record.Spec.AccessModes,
			VolumeMode:                    &record.Spec.VolumeMode,
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: record.Spec.Claim.Namespace, Name: record.Spec.Claim.Name, UID: record.Spec.Claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: record.Spec.Provisioner.Name, VolumeHandle: record.Status.Handle, VolumeAttributes: class.Parameters,
				FSType: class.Parameters[steppod.FSTypeParameter], NodePublishSecretRef: secret,
			}},
		},
	}, nil
}

// secretOf is the Secret that the class named for the claim, as both were when the record was
// created.
func secretOf(record *tarnv1.PavVolume, class *storagev1.StorageClass) (*corev1.SecretReference, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := json.Unmarshal(record.Spec.ClaimSnapshot.Raw, claim); err != nil {
		return nil, fmt.Errorf("reading claimSnapshot of PavVolume %s: %w", record.Name, err)
	}
	return steppod.SecretOf(class, record.Name, claim)
}

// isOf says that a PersistentVolume was created from a record. Its present claim does not matter:
// before the record said that it was handed over, it may have been released or bound to another
// claim.
func isOf(vol *corev1.PersistentVolume, record *tarnv1.PavVolume) bool {
	return vol.Annotations[tarnv1.AnnotationRecord] == string(record.UID) ||
		vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID == record.Spec.Claim.UID
}

// classOf is the class as it was when the record was created.
func classOf(record *tarnv1.PavVolume) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	if err := json.Unmarshal(record.Spec.ClassSnapshot.Raw, class); err != nil {
		return nil, fmt.Errorf("reading classSnapshot of PavVolume %s: %w", record.Name, err)
	}
	return class, nil
}

// affinityTo restricts a volume to the node with a host name.
func affinityTo(hostname string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname},
		}},
	}}}}
}
