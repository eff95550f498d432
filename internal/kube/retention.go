package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// SetsOf gives the PersistentVolumeSets that select a volume.
func SetsOf(ctx context.Context, reader client.Reader, vol *corev1.PersistentVolume) ([]tarnv1.PersistentVolumeSet, error) {
	list := &tarnv1.PersistentVolumeSetList{}
	if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing PersistentVolumeSets: %w", err)
	}
	var sets []tarnv1.PersistentVolumeSet
	for i := range list.Items {
		if volume.Selects(&list.Items[i], vol) {
			sets = append(sets, list.Items[i])
		}
	}
	return sets, nil
}

// ClassOf reads the class of a volume. It is nil if the volume names none, or if the class does not
// exist.
func ClassOf(ctx context.Context, reader client.Reader, vol *corev1.PersistentVolume) (*storagev1.StorageClass, error) {
	name := volume.ClassOfVolume(vol)
	if name == "" {
		return nil, nil
	}
	return Get(ctx, reader, client.ObjectKey{Name: name}, &storagev1.StorageClass{})
}

// RetentionOf finds how long a volume must be kept after its release. If its class was deleted,
// former is what is known of the class, or nil.
func RetentionOf(ctx context.Context, reader client.Reader, vol *corev1.PersistentVolume, former *storagev1.StorageClass) (volume.Retention, error) {
	sets, err := SetsOf(ctx, reader, vol)
	if err != nil {
		return volume.Retention{}, err
	}
	class, err := ClassOf(ctx, reader, vol)
	if err != nil {
		return volume.Retention{}, err
	}
	if class == nil {
		class = former
	}
	return volume.RetentionOf(vol, sets, class), nil
}
