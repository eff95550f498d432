package testkit

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// With changes a freshly built object. The builders below accept any number of them.
type With[T any] func(T)

func apply[T any](object T, changes []With[T]) T {
	for _, change := range changes {
		change(object)
	}
	return object
}

// Noon is the time at which the worlds of unit tests begin.
var Noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Storage is the resource list of a size.
func Storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// Node builds a node.
func Node(name string, changes ...With[*corev1.Node]) *corev1.Node {
	return apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, changes)
}

// Pod builds a pod with one container.
func Pod(namespace, name string, changes ...With[*corev1.Pod]) *corev1.Pod {
	return apply(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
	}, changes)
}

// OnNode schedules a pod to a node.
func OnNode(node string) With[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Spec.NodeName = node }
}

// Using makes a pod use claims of its namespace.
func Using(claims ...string) With[*corev1.Pod] {
	return func(p *corev1.Pod) {
		for _, claim := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
		}
	}
}

// InPhase gives a pod its phase.
func InPhase(phase corev1.PodPhase) With[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// ClaimRef is the reference of a volume to its claim.
func ClaimRef(c *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

// Claim builds a claim of 1Gi, ReadWriteOnce, that the binder has assigned to a provisioner.
func Claim(namespace, name string, uid types.UID, provisioner string, changes ...With[*corev1.PersistentVolumeClaim]) *corev1.PersistentVolumeClaim {
	return apply(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uid,
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": provisioner},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: ptr.To(provisioner),
			Resources: corev1.VolumeResourceRequirements{
				Requests: Storage("1Gi"),
			},
		},
	}, changes)
}

// Class builds a StorageClass named after its provisioner.
func Class(provisioner string, changes ...With[*storagev1.StorageClass]) *storagev1.StorageClass {
	return apply(&storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: provisioner},
		Provisioner: provisioner, Parameters: map[string]string{"tier": "gold"},
		ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete), VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	}, changes)
}

// Section is the raw JSON of a section of a PavProvisioner.
func Section(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }

// PodSection is a section that contains only a pod with one container.
func PodSection() *apiextensionsv1.JSON {
	return Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36", "command": ["true"]}]}}}`)
}

// Provisioner builds an accepted PavProvisioner, Dynamic and Static, with pods for creation,
// deletion and staging.
func Provisioner(name string, changes ...With[*pavv1.PavProvisioner]) *pavv1.PavProvisioner {
	return apply(&pavv1.PavProvisioner{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")},
		Spec: pavv1.PavProvisionerSpec{
			ProvisioningModes: []pavv1.ProvisioningMode{pavv1.ModeDynamic, pavv1.ModeStatic},
			VolumeCreation:    PodSection(), VolumeDeletion: PodSection(), VolumeStaging: PodSection(),
		},
		Status: pavv1.PavProvisionerStatus{Conditions: []metav1.Condition{Accepted(metav1.ConditionTrue, "Accepted", "")}},
	}, changes)
}

// Accepted builds the condition Accepted for generation 0.
func Accepted(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: pavv1.ConditionAccepted, Status: status, Reason: reason, Message: message}
}

// Record builds the PavVolume of a claim.
func Record(claim *corev1.PersistentVolumeClaim, provisioner string, phase tarnv1.VolumePhase, changes ...With[*tarnv1.PavVolume]) *tarnv1.PavVolume {
	return apply(&tarnv1.PavVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-" + string(claim.UID), UID: types.UID("record-" + string(claim.UID)), Finalizers: []string{tarnv1.FinalizerRecord},
			Labels: map[string]string{tarnv1.LabelProvisioner: provisioner},
		},
		Spec: tarnv1.PavVolumeSpec{
			Provisioner:          tarnv1.ProvisionerReference{Name: provisioner, UID: types.UID(provisioner + "-uid")},
			Claim:                tarnv1.ClaimReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			VolumeMode:           corev1.PersistentVolumeFilesystem,
			AccessModes:          claim.Spec.AccessModes,
			RequestedMinCapacity: 1 << 30,
			ClaimSnapshot:        apiextensionsv1.JSON{Raw: []byte(`{"metadata": {"name": "` + claim.Name + `"}}`)},
			ClassSnapshot:        apiextensionsv1.JSON{Raw: []byte(`{"metadata": {"name": "` + provisioner + `"}, "provisioner": "` + provisioner + `", "parameters": {"tier": "gold"}}`)},
		},
		Status: tarnv1.PavVolumeStatus{Phase: phase, Attempts: 1},
	}, changes)
}

// Volume builds the PersistentVolume of a record, bound to its claim.
func Volume(record *tarnv1.PavVolume, changes ...With[*corev1.PersistentVolume]) *corev1.PersistentVolume {
	return apply(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: record.Name, UID: types.UID("volume-" + record.Name)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      Storage("1Gi"),
			AccessModes:                   record.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{
				Namespace: record.Spec.Claim.Namespace, Name: record.Spec.Claim.Name, UID: record.Spec.Claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: record.Spec.Provisioner.Name, VolumeHandle: "handle"},
			},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}, changes)
}
