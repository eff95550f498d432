package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// tie gives a volume the affinity of its node, by the label Kubernetes' own local
// volumes use; no node, no affinity.
func (r *reconciler) tie(ctx context.Context, vol *corev1.PersistentVolume, nodeName string) error {
	if nodeName == "" {
		return nil
	}
	node, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: nodeName}, &corev1.Node{})
	if err != nil {
		return err
	}
	hostname := nodeName
	if node != nil && node.Labels[corev1.LabelHostname] != "" {
		hostname = node.Labels[corev1.LabelHostname]
	}
	vol.Spec.NodeAffinity = affinityTo(hostname)
	return nil
}

// reschedule gives the choice of a node back to the scheduler after a failure. The
// record forgets the node first: after a crash in between, the same node is tried
// once more, which does no harm.
func (r *reconciler) reschedule(ctx context.Context, v *View) error {
	node := v.Record.Status.NodeName
	status := v.Record.Status.DeepCopy()
	status.NodeName = ""
	if err := r.writeStatus(ctx, v, status); err != nil {
		return err
	}
	live, err := r.liveClaim(ctx, v.Claim)
	if err != nil || live == nil || live.Annotations[annSelectedNode] != node {
		return err
	}
	base := live.DeepCopy()
	delete(live.Annotations, annSelectedNode)
	err = r.client.Patch(ctx, live, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("giving claim %s/%s back to the scheduler: %w", live.Namespace, live.Name, err)
	}
	return nil
}
