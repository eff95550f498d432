package provision

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// hasNoNode says whether the pod at hand was given no node, so that it has made nothing.
func hasNoNode(v *View) bool {
	o := v.Observed.State
	return v.Pod != nil && v.Pod.Spec.NodeName == "" && v.Pod.DeletionTimestamp == nil && (o == steppod.PodStarting || o == steppod.PodFailed)
}

// neverRan says whether no container of this attempt has ever run, so that nothing was made:
// its first pod was given no node, or the kubelet has ended it before it could start a
// container. A deletion pod would wait for the same node, image or Secret without an end.
// Only the first pod of an attempt tells this: a later one follows a pod that may have run
// and was evicted or deleted. Tarn alone sets the mark of the first, so a pod that a user
// put in its place does not have it.
func neverRan(v *View) bool {
	return v.Observed.Inputs.First && (hasNoNode(v) || v.Pod != nil && steppod.NeverRan(v.Pod))
}

// neverRanUntil is until when the kubelet is asked whether a pod whose time is up ever ran;
// zero where its answer would change nothing.
func neverRanUntil(v *View, now time.Time) time.Time {
	if !v.Observed.Inputs.First || v.Observed.State != steppod.PodFailed || v.Pod == nil {
		return time.Time{}
	}
	return steppod.UnstartedUntil(v.Pod, now)
}

// withdraw takes back a pod that waits for a node when nobody waits for its volume, or the
// record was deleted.
func withdraw(v *View) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase, status.Handle, status.NextAttemptTime = tarnv1.VolumePending, "", nil
	what := "claim"
	if wanted(v) {
		what = "PavVolume"
	}
	say(status, v.Record, reasonClaimGone, "the "+what+" was deleted before a node was found for the volume")
	return Plan{Act: ActWithdraw, Status: status}
}

// takeBack deletes the pod at hand as it was seen, without a node: one that the
// scheduler has given a node meanwhile is another version, and stays.
func (r *reconciler) takeBack(ctx context.Context, v *View, p Plan) error {
	err := r.client.Delete(ctx, v.Pod, client.Preconditions{UID: &v.Pod.UID, ResourceVersion: &v.Pod.ResourceVersion})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return kube.ErrStale
	}
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s, which no node was found for: %w", v.Pod.Namespace, v.Pod.Name, err)
	}
	v.Pod, v.Observed = nil, steppod.Observation{State: steppod.PodAbsent}
	if err := r.writeStatus(ctx, v, p.Status); err != nil {
		return err
	}
	r.warn(v, p.Cause, p.Warning)
	return nil
}
