package protect

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// writers is how many finalizers are written at once. Deleting a namespace deletes thousands of
// objects, and each write is a round trip.
const writers = 8

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=patch

// apply carries out the whole plan, and continues after a failed write, as the objects are
// independent. It returns all errors joined, with known, an error found earlier or nil.
func apply(ctx context.Context, c client.Client, p Plan, known error) error {
	failed := make([]error, len(p.Actions)+1)
	failed[len(p.Actions)] = known
	workqueue.ParallelizeUntil(ctx, writers, len(p.Actions), func(i int) { failed[i] = do(ctx, c, p.Actions[i]) })
	return errors.Join(append(failed, ctx.Err())...)
}

func do(ctx context.Context, c client.Client, a Action) error {
	switch a := a.(type) {
	case ProtectClaim:
		return kube.AddFinalizer(ctx, c, a.Claim, FinalizerClaim)
	case ReleaseClaim:
		return kube.RemoveFinalizer(ctx, c, a.Claim, FinalizerClaim)
	case ProtectVolume:
		return kube.AddFinalizer(ctx, c, a.Volume, FinalizerVolume)
	case ReleaseVolume:
		return kube.RemoveFinalizer(ctx, c, a.Volume, FinalizerVolume)
	}
	return fmt.Errorf("protect: unknown action %T", a)
}
