package supervisor

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"
)

// nodeVolumes is the name of the role that lets the kubelet read claims and volumes.
const nodeVolumes = "embedded:node-volumes"

// nodeRights lets the kubelet read claims and volumes before the Node authorizer knows which pods
// use them. The authorizer learns of a pod from the same kind of watch as the kubelet, and often
// later on a machine with few processors. Without this right the kubelet is denied and retries the
// pod only after ten seconds. There is only one node, all claims in use are its own, and neither
// kind holds a secret.
func (s *Supervisor) nodeRights(ctx context.Context) error {
	config, err := s.restConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the node's rights: %w", err)
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
