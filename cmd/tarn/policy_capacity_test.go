//go:build integration

package main

import (
	"context"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// TestTheNodeAgentWritesTheCapacityOfItsOwnNodeAlone gives the agent every right to capacities, so
// that only the policy is in its way.
func TestTheNodeAgentWritesTheCapacityOfItsOwnNodeAlone(t *testing.T) {
	ctx, config, admin := policed(t)
	namespaces(ctx, t, admin, tarnv1.SystemNamespace)
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "capacities"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csistoragecapacities"}, Verbs: []string{"*"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "capacities"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "capacities"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: asNode}},
		},
	} {
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Allowed(t, admin, authorizationv1.SubjectAccessReviewSpec{
		User: asNode, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: tarnv1.SystemNamespace, Verb: "delete", Group: "storage.k8s.io", Resource: "csistoragecapacities"},
	})
	of := func(node string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: tarnv1.SystemNamespace, Name: "of-" + node, Labels: map[string]string{tarnv1.LabelProvisioner: "p"},
				Annotations:     map[string]string{tarnv1.AnnotationNode: node, tarnv1.AnnotationCapacityPath: "/x"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "u"}},
			},
			NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}},
			StorageClassName: "gold", Capacity: resource.NewQuantity(1, resource.BinarySI),
		}
	}
	for _, node := range []string{onNode, "node-2"} {
		if err := admin.Create(ctx, of(node)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin.Delete(context.Background(), of(node)) })
	}
	change := func(node string, change func(*storagev1.CSIStorageCapacity)) func() error {
		return func() error {
			changed := of(node)
			change(changed)
			return as(t, config, asNode).Patch(ctx, changed, client.MergeFrom(of(node)))
		}
	}
	full := func(c *storagev1.CSIStorageCapacity) { c.Capacity = resource.NewQuantity(7, resource.BinarySI) }
	judge(t, []attempt{
		{"it writes what is free on its node", change(onNode, full), true},
		{"it does not write what is free on another", change("node-2", full), false},
		{"it does not take the object of another node", change("node-2", func(c *storagev1.CSIStorageCapacity) { c.Annotations[tarnv1.AnnotationNode] = onNode }), false},
		{"it does not give its own away", change(onNode, func(c *storagev1.CSIStorageCapacity) { c.Annotations[tarnv1.AnnotationNode] = "node-2" }), false},
		{"it does not choose its path", change(onNode, func(c *storagev1.CSIStorageCapacity) { c.Annotations[tarnv1.AnnotationCapacityPath] = "/y" }), false},
		{"it does not hide it from the controller", change(onNode, func(c *storagev1.CSIStorageCapacity) { c.Labels = nil }), false},
		{"it does not keep it from going", change(onNode, func(c *storagev1.CSIStorageCapacity) { c.OwnerReferences = nil }), false},
		{"nor by a finalizer", change(onNode, func(c *storagev1.CSIStorageCapacity) { c.Finalizers = []string{"example.org/stay"} }), false},
		{"it sets no largest volume", change(onNode, func(c *storagev1.CSIStorageCapacity) {
			c.MaximumVolumeSize = resource.NewQuantity(7, resource.BinarySI)
		}), false},
		{"it makes none, not even for its own node", func() error {
			made := of(onNode)
			made.Name = "another"
			return as(t, config, asNode).Create(ctx, made)
		}, false},
		{"it deletes none", func() error { return as(t, config, asNode).Delete(ctx, of(onNode)) }, false},
	}, "node.tarn.dev")
}
