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

// hasNoNode says whether the current pod got no node, so that it created nothing.
func hasNoNode(v *View) bool {
	o := v.Observed.State
	return v.Pod != nil && v.Pod.Spec.NodeName == "" && v.Pod.DeletionTimestamp == nil && (o == steppod.PodStarting || o == steppod.PodFailed)
}

// neverRan says whether no container of this attempt has ever run, so that nothing was created. Its
// first pod got no node, or the kubelet ended it before a container started. A deletion pod would
// wait endlessly for the same node, image or Secret.
//
// Only the first pod of an attempt proves this: a later one follows a pod that may have run and was
// evicted or deleted. Only Tarn marks a pod as the first, so a pod that a user put in its place has
// no mark.
func neverRan(v *View) bool {
	return v.Observed.Inputs.First && (hasNoNode(v) || v.Pod != nil && steppod.NeverRan(v.Pod))
}

// neverRanUntil is how long the controller waits for the kubelet to report whether a pod past its
// deadline ever ran. It is zero if the answer would change nothing.
func neverRanUntil(v *View, now time.Time) time.Time {
	if !v.Observed.Inputs.First || v.Observed.State != steppod.PodFailed || v.Pod == nil {
		return time.Time{}
	}
	return steppod.UnstartedUntil(v.Pod, now)
}

// withdraw removes a pod that waits for a node, when its claim no longer needs the volume or the
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

// takeBack deletes the current pod only in the version that was seen without a node. If the
// scheduler has given it a node meanwhile, its version differs and it stays.
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
