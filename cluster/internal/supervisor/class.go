package supervisor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"tarn.dev/tarn/cluster/internal/component"
)

// classes makes the StorageClasses that every cluster has: directories on the node, and the classes
// for applications. It leaves a class alone whose name is taken.
func (s *Supervisor) classes(ctx context.Context) error {
	config, err := s.restConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the StorageClasses: %w", err)
	}
	wanted := []*storagev1.StorageClass{class("local-path", "tarn.dev/host-path", false, nil)}
	for _, name := range component.AppProvisioners() {
		wanted = append(wanted, class(name, name, true, map[string]string{"folder": s.config.Layout.Volumes(name)}))
	}
	for _, c := range wanted {
		if _, err := client.StorageV1().StorageClasses().Create(ctx, c, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating StorageClass %s: %w", c.Name, err)
		}
	}
	return nil
}

// class is a StorageClass with immediate binding. There is only one node to choose. Waiting for a
// pod would cost that pod a second, after which the scheduler retries it.
func class(name, provisioner string, grows bool, parameters map[string]string) *storagev1.StorageClass {
	policy, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name},
		Provisioner:          provisioner,
		Parameters:           parameters,
		ReclaimPolicy:        &policy,
		VolumeBindingMode:    &mode,
		AllowVolumeExpansion: &grows,
	}
}
