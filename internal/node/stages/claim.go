package stages

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	words "tarn.dev/tarn/internal/volume"
)

// checkClaim rejects a first pod on a claim that is being deleted, as the stage shows. Usually the
// scheduler has rejected the pod already. It has not if it decided before the deletion, or if the
// pod names its node. A pod that has ever started is served: the claim is kept for it, and the node
// may be restarting under it.
func (a *attempt) checkClaim(ctx context.Context, stage *tarnv1.PavStage) error {
	ref := a.request.Pod
	if a.claim == nil || a.claim.UID == "" || stage.Status.Pod.ClaimDeleted != a.claim.UID || ref.Name == "" {
		return nil // the kubelet mounts no volume without a claim, and says whose it is
	}
	pod, err := kube.Get(ctx, a.Live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.Pod{})
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if pod != nil && pod.UID == ref.UID && words.Started(pod) {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "can't start pod %s/%s because it's using claim %s/%s that is being deleted",
		ref.Namespace, ref.Name, a.claim.Namespace, a.claim.Name)
}
