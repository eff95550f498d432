package pavvolume

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// takeNode makes the new attempt run on the node that the claim selects. Users who may write the
// claim may set the node themselves, and the scheduler does not check it. So takeNode checks it
// against the class. A rejected node is recorded like one that failed, and then given back to the
// scheduler.
func (r *reconciler) takeNode(ctx context.Context, v *View) error {
	// A node that was given back must not be used again because a cache is behind.
	claim, err := r.liveClaim(ctx, v)
	if err != nil {
		return err
	}
	selected := v.Claim.Annotations[volume.AnnSelectedNode]
	if claim == nil || claim.Annotations[volume.AnnSelectedNode] != selected {
		return kube.ErrStale
	}
	return r.runOn(ctx, v, selected, fmt.Sprintf("which annotation %s of the claim selects", volume.AnnSelectedNode))
}

// runOn makes the new attempt run on a node, if that exists and the class allows it. which tells
// users where the name comes from.
func (r *reconciler) runOn(ctx context.Context, v *View, name, which string) error {
	v.Record = v.Record.DeepCopy()
	v.Record.Status.NodeName = name
	class, err := classOf(v.Record)
	if err != nil {
		return err
	}
	node, err := r.liveNode(ctx, name)
	if err != nil {
		return err
	}
	why, reason := "is not in allowedTopologies of StorageClass "+class.Name, reasonNodeRefused
	switch {
	case node == nil:
		why, reason = "is gone", steppod.ReasonNodeGone
	case volume.Allows(class.AllowedTopologies, node.Labels):
		return nil
	}
	return &steppod.StepError{Step: tarnv1.StepCreation, Reason: reason, Message: fmt.Sprintf("node %q, %s, %s", name, which, why)}
}

// nodeGone returns a StepError if the attempt's node is gone. No pod of the attempt can run there.
// Only the scheduler, or a pod that may run anywhere, finds another node.
func (r *reconciler) nodeGone(ctx context.Context, v *View, step tarnv1.Step) error {
	gone, err := r.lostNode(ctx, v)
	if err != nil || gone == "" {
		return err
	}
	return &steppod.StepError{Step: step, Reason: steppod.ReasonNodeGone, Message: gone + ", on which the volume was being created, is gone"}
}

// lostNode names the node of the volume if it is gone, so that no pod can reach the storage. It is
// empty otherwise. A volume that is where its claims are has the nodes of their volumes.
func (r *reconciler) lostNode(ctx context.Context, v *View) (gone string, err error) {
	if follows(v) && destroying(v.Record) {
		return r.lostBelow(ctx, v)
	}
	name := v.Record.Status.NodeName
	if name == "" {
		return "", nil
	}
	node, err := r.liveNode(ctx, name)
	if err != nil || node != nil {
		return "", err
	}
	return fmt.Sprintf("node %q", name), nil
}

// lostBelow does that for the volumes of the claims that were made for the volume.
func (r *reconciler) lostBelow(ctx context.Context, v *View) (gone string, err error) {
	for _, claim := range v.Claims {
		if claim.Spec.VolumeName == "" {
			continue
		}
		below, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
		if err != nil {
			return "", err
		}
		if below == nil || below.Spec.NodeAffinity == nil {
			continue
		}
		if there, err := r.hasNode(ctx, below.Spec.NodeAffinity.Required); err != nil || !there {
			return "the node of PersistentVolume " + below.Name, err
		}
	}
	return "", nil
}

// hasNode says whether a node matches a selector. What the cache lacks is read live.
func (r *reconciler) hasNode(ctx context.Context, selector *corev1.NodeSelector) (bool, error) {
	for _, from := range []client.Reader{r.client, r.reader} {
		nodes := &corev1.NodeList{}
		if err := from.List(ctx, nodes); err != nil {
			return false, fmt.Errorf("listing nodes: %w", err)
		}
		if slices.ContainsFunc(nodes.Items, func(node corev1.Node) bool { return volume.SelectsNode(selector, &node) }) {
			return true, nil
		}
	}
	return false, nil
}

// liveNode reads a node from the API server, nil if it is gone.
func (r *reconciler) liveNode(ctx context.Context, name string) (*corev1.Node, error) {
	return kube.Get(ctx, r.reader, client.ObjectKey{Name: name}, &corev1.Node{})
}

// tie gives a volume the node affinity of its node, with the label that Kubernetes' own local
// volumes use. Without a node there is no affinity.
func (r *reconciler) tie(ctx context.Context, vol *corev1.PersistentVolume, nodeName string) error {
	if nodeName == "" {
		return nil
	}
	node, err := r.liveNode(ctx, nodeName)
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

// reschedule lets the scheduler select another node after a failure. It clears the node in the
// record first. After a crash in between, the controller tries the same node once more, which does
// no harm.
func (r *reconciler) reschedule(ctx context.Context, v *View) error {
	node := v.Record.Status.NodeName
	status := v.Record.Status.DeepCopy()
	status.NodeName = ""
	if _, err := r.apply(ctx, v, writes(v, status)); err != nil {
		return err
	}
	live, err := r.liveClaim(ctx, v)
	if err != nil || live == nil || live.Annotations[volume.AnnSelectedNode] != node {
		return err
	}
	free := live.DeepCopy()
	delete(free.Annotations, volume.AnnSelectedNode)
	return r.runner.Do(ctx, action.Patch{From: live, To: free})
}
