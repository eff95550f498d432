package stages

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
	words "tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get

// checkClaim refuses to start a pod on a claim that is being deleted, by what the API
// server knows now: the scheduler has refused it already, unless it was before the
// deletion or somebody named the node himself. A pod that has ever started is served:
// the claim is kept for it, and the node may be coming up again under it.
func (s *Stages) checkClaim(ctx context.Context, volume *corev1.PersistentVolume, ref PodRef) error {
	to := volume.Spec.ClaimRef
	if to == nil || to.UID == "" || ref.Name == "" {
		return nil // the kubelet mounts no volume without a claim, and says whose it is
	}
	claim, err := kube.Get(ctx, s.Live, client.ObjectKey{Namespace: to.Namespace, Name: to.Name}, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if claim == nil || claim.UID != to.UID || claim.DeletionTimestamp.IsZero() {
		return nil
	}
	pod, err := kube.Get(ctx, s.Live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.Pod{})
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if pod != nil && pod.UID == ref.UID && words.Started(pod) {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "can't start pod %s/%s because it's using claim %s/%s that is being deleted",
		ref.Namespace, ref.Name, claim.Namespace, claim.Name)
}
