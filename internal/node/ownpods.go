package node

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownPods reads only the pods of this node. Other kinds it reads like Reader.
//
// A role cannot limit get to the pods of a node, so the agent has no right to get pods. Policy
// node.tarn.dev does limit what the agent patches. An empty patch in a dry run writes nothing, and
// its answer is the pod.
type ownPods struct {
	client.Reader
	writer client.Client
	node   string
}

// Get answers NotFound for a pod of another node: the pod that the caller means was deleted, and
// another pod has its name.
func (o ownPods) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	pod, ok := into.(*corev1.Pod)
	if !ok {
		return o.Reader.Get(ctx, key, into, options...)
	}
	pod.Namespace, pod.Name = key.Namespace, key.Name
	err := o.writer.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte("{}")), client.DryRunAll)
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "spec.nodeName is not "+o.node+":") {
		return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
	}
	return err
}
