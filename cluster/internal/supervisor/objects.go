package supervisor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"tarn.dev/tarn/cluster/internal/component"
)

// classes makes the StorageClasses that every cluster has: directories on the node, and the classes
// for applications. It leaves a class alone whose name is taken.
func (s *Supervisor) classes(ctx context.Context) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	wanted := []*storagev1.StorageClass{class("local-path", "tarn.dev/host-path", false, nil)}
	for name, provisioner := range component.AppClasses() {
		wanted = append(wanted, class(name, provisioner, true, map[string]string{"folder": s.config.Layout.Volumes(name)}))
	}
	for _, c := range wanted {
		if _, err := client.StorageV1().StorageClasses().Create(ctx, c, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating StorageClass %s: %w", c.Name, err)
		}
	}
	return nil
}

// class is a StorageClass with immediate binding. Most clusters have only one node to choose. Waiting
// for a pod would cost that pod a second, after which the scheduler retries it.
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

// nodeVolumes is the name of the role that lets the kubelet read claims and volumes.
const nodeVolumes = "embedded:node-volumes"

// nodeRights lets the kubelet read claims and volumes before the Node authorizer knows which pods
// use them. The authorizer learns of a pod from the same kind of watch as the kubelet, and often
// later on a machine with few processors. Without this right the kubelet is denied and retries the
// pod only after ten seconds. All nodes are this machine, and neither kind holds a secret.
func (s *Supervisor) nodeRights(ctx context.Context) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ours := metav1.ApplyOptions{FieldManager: "tarn-cluster", Force: true}
	role := rbac.ClusterRole(nodeVolumes).WithRules(rbac.PolicyRule().WithAPIGroups("").WithResources("persistentvolumeclaims", "persistentvolumes").WithVerbs("get"))
	if _, err := client.RbacV1().ClusterRoles().Apply(ctx, role, ours); err != nil {
		return fmt.Errorf("creating ClusterRole %s: %w", nodeVolumes, err)
	}
	binding := rbac.ClusterRoleBinding(nodeVolumes).
		WithRoleRef(rbac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName(nodeVolumes)).
		WithSubjects(rbac.Subject().WithAPIGroup(rbacv1.GroupName).WithKind(rbacv1.GroupKind).WithName("system:nodes"))
	if _, err := client.RbacV1().ClusterRoleBindings().Apply(ctx, binding, ours); err != nil {
		return fmt.Errorf("creating ClusterRoleBinding %s: %w", nodeVolumes, err)
	}
	return nil
}
