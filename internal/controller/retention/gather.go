package retention

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes;persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=volumeattachments,verbs=list
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets,verbs=get;list;watch

// View is all that a decision about one volume depends on. A nil object does not exist. The
// volume shares memory with the cache and must not be changed.
type View struct {
	// Namespace is Tarn's own. A volume of a claim there is being added to a pool or removed
	// from one.
	Namespace string
	Volume    *corev1.PersistentVolume
	// Claim is the claim that the volume belongs to, matched by UID.
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Sets are the sets that select the volume.
	Sets []tarnv1.PersistentVolumeSet
}

// gather reads the View of one volume from the cache. It skips the claim if the volume has no
// retention, as most have none and each is reconciled several times.
func (r *reconciler) gather(ctx context.Context, name string) (*View, error) {
	v := &View{Namespace: r.namespace}
	var err error
	if v.Volume, err = kube.Get(ctx, r.client, client.ObjectKey{Name: name}, &corev1.PersistentVolume{}, client.UnsafeDisableDeepCopy); err != nil || v.Volume == nil {
		return v, err
	}
	if v.Class, err = kube.ClassOf(ctx, r.client, v.Volume); err != nil {
		return nil, err
	}
	if v.Sets, err = kube.SetsOf(ctx, r.client, v.Volume); err != nil {
		return nil, err
	}
	ref := v.Volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" || !volume.Held(v.Volume) && !retentionOf(v).Wanted() {
		return v, nil
	}
	claim, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	if claim != nil && claim.UID == ref.UID {
		v.Claim = claim
	}
	return v, err
}

func retentionOf(v *View) volume.Retention { return volume.RetentionOf(v.Volume, v.Sets, v.Class) }
