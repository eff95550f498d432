package expand

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// eventAction is what Events say was being done.
const eventAction = "Expand"

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply carries out a plan, up to the first error. It updates the view after each write, so that
// the next write is checked against the result.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) error {
	for _, a := range p.Actions {
		if err := r.do(ctx, v, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) do(ctx context.Context, v *View, a Action) error {
	switch a := a.(type) {
	case WriteJournal:
		record := v.Record.DeepCopy()
		record.Status = *a.Status
		if err := r.client.Status().Update(ctx, record); err != nil {
			return fmt.Errorf("writing the status of PavVolume %s: %w", record.Name, err)
		}
		v.Record = record
		return nil
	case WriteClaim:
		claim := a.Claim.DeepCopy()
		if err := r.client.Status().Patch(ctx, claim, client.MergeFromWithOptions(v.Claim, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("writing the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		v.Claim = claim
		return nil
	case GrowVolume:
		vol := v.Volume.DeepCopy()
		vol.Spec.Capacity[corev1.ResourceStorage] = quantity(a.Bytes)
		if err := r.client.Patch(ctx, vol, client.MergeFrom(v.Volume)); err != nil {
			return fmt.Errorf("writing the capacity of PersistentVolume %s: %w", vol.Name, err)
		}
		v.Volume = vol
		return nil
	case StartPod:
		return r.steps.Start(ctx, a.Pod.DeepCopy())
	case DiscardPods:
		return r.discard(ctx, v, a.Keep)
	case Post:
		r.post(v, a)
		return nil
	case PostWait:
		if v.Claim != nil {
			r.events.Eventf(v.Claim, v.Volume, corev1.EventTypeWarning, steppod.EventPodWaiting, a.Action, "%s", kube.Note(a.Note))
		}
		return nil
	}
	return fmt.Errorf("expand: unknown action %T", a)
}

func (r *reconciler) discard(ctx context.Context, v *View, keep string) error {
	for i := range v.Pods {
		if v.Pods[i].Name == keep {
			continue
		}
		if err := r.steps.Discard(ctx, &v.Pods[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) post(v *View, p Post) {
	if v.Claim == nil {
		return
	}
	var related runtime.Object = v.Volume
	r.events.Eventf(v.Claim, related, p.Type, p.Reason, eventAction, "%s", kube.Note(p.Note))
}
