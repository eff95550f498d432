package plugin

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/volume"
)

// newRequest is the request to the plugin for a claim.
func newRequest(v *View) plugin.Request {
	size := volume.Request(v.Claim)
	return plugin.Request{
		Name: v.VolumeName, Bytes: size.Value(), Mode: volume.ModeOf(v.Claim),
		AccessModes: v.Claim.Spec.AccessModes, Parameters: parameters(v.Class.Parameters),
	}
}

// parameters are the class's parameters for a plugin; the retention is not one of them.
func parameters(ofClass map[string]string) map[string]string {
	own := maps.Clone(ofClass)
	delete(own, tarnv1.AnnotationRetention)
	return own
}

// newVolume is the PersistentVolume of what the plugin has made. It takes the reclaim policy
// that the class has now; the class is not consulted when the volume is deleted.
func newVolume(v *View, asset plugin.Asset) *corev1.PersistentVolume {
	claim, class := v.Claim, v.Class
	vol := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        v.VolumeName,
			Annotations: map[string]string{volume.AnnProvisionedBy: v.Plugin.Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: capacity(claim, asset)},
			AccessModes:                   slices.Clone(claim.Spec.AccessModes),
			VolumeMode:                    ptr.To(volume.ModeOf(claim)),
			StorageClassName:              volume.ClassOf(claim),
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			PersistentVolumeSource:        asset.Source,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
		},
	}
	if vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		vol.Finalizers = []string{volume.FinalizerExternal}
	}
	if v.Node != nil {
		vol.Annotations[tarnv1.AnnotationNode] = v.Node.Name
		vol.Spec.NodeAffinity = affinityTo(v.Node)
	}
	if v.Plugin.Place != "" {
		vol.Annotations[tarnv1.AnnotationPlace] = v.Plugin.Place
	}
	return vol
}

// madeVolume is a PersistentVolume as its plugin knows it.
func madeVolume(vol *corev1.PersistentVolume) plugin.Volume {
	return plugin.Volume{Name: vol.Name, Source: &vol.Spec.PersistentVolumeSource, Place: vol.Annotations[tarnv1.AnnotationPlace]}
}

// begunVolume is what may have been made for a claim with a promise.
func begunVolume(v *View) plugin.Volume {
	return plugin.Volume{Name: v.VolumeName, Place: v.Claim.Annotations[tarnv1.AnnotationPlace]}
}

// capacity is exactly what was requested, unless the plugin has made more.
func capacity(claim *corev1.PersistentVolumeClaim, asset plugin.Asset) resource.Quantity {
	asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if asset.Bytes > asked.Value() {
		return *resource.NewQuantity(asset.Bytes, resource.BinarySI)
	}
	return asked
}

// affinityTo restricts a volume to a node, by the label that Kubernetes' own local volumes use.
func affinityTo(node *corev1.Node) *corev1.VolumeNodeAffinity {
	hostname := node.Labels[corev1.LabelHostname]
	if hostname == "" {
		hostname = node.Name
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname},
		}},
	}}}}
}
