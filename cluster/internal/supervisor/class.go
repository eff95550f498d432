package supervisor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// localPath makes the class of volumes that are folders on the node, unless there is one of that name. They are made as soon as they
// are asked for: there is but one node to choose, and waiting for a pod would cost that pod the second after which the scheduler
// looks again.
func (s *Supervisor) localPath(ctx context.Context) error {
	config, err := s.restConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making StorageClass local-path: %w", err)
	}
	policy, mode, expansion := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate, false
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: "local-path"},
		Provisioner:          "tarn.dev/host-path",
		ReclaimPolicy:        &policy,
		VolumeBindingMode:    &mode,
		AllowVolumeExpansion: &expansion,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making StorageClass local-path: %w", err)
	}
	return nil
}
