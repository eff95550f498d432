package provision

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/podvol"
)

// hasNoNode says whether the pod at hand was given no node, so that it has made nothing.
func hasNoNode(v *View) bool {
	o := v.Observed.State
	return v.Pod != nil && v.Pod.Spec.NodeName == "" && v.Pod.DeletionTimestamp == nil && (o == podvol.PodStarting || o == podvol.PodFailed)
}

// neverRan says whether no pod of this attempt was ever given a node, so that nothing was
// made. A deletion pod would be given none either: it would be waited for without an end.
// That a pod has none tells of that pod alone: the one before may have run and have been
// evicted, or deleted by whoever may do so. The mark of the first is Tarn's own to set,
// so that a pod somebody put in its place has it as little as one that was started again.
func neverRan(v *View) bool { return hasNoNode(v) && v.Observed.Inputs.First }

// withdraw takes back a pod that waits for a node when nobody waits for its volume.
func withdraw(v *View) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase, status.NextAttemptTime = tarnv1.VolumePending, nil
	say(status, v.Record, reasonClaimGone, "the claim was deleted before a node was found to make its volume on")
	return Plan{Act: ActWithdraw, Status: status}
}

// takeBack deletes the pod at hand as it was seen, without a node: one that the
// scheduler has given a node meanwhile is another version, and stays.
func (r *reconciler) takeBack(ctx context.Context, v *View, p Plan) error {
	err := r.client.Delete(ctx, v.Pod, client.Preconditions{UID: &v.Pod.UID, ResourceVersion: &v.Pod.ResourceVersion})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return errStale
	}
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s, which no node was found for: %w", v.Pod.Namespace, v.Pod.Name, err)
	}
	v.Pod, v.Observed = nil, podvol.Observation{State: podvol.PodAbsent}
	if err := r.writeStatus(ctx, v, p.Status); err != nil {
		return err
	}
	r.warn(v, p.Cause, p.Warning)
	return nil
}
