package stage

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// The node agent may not read claims. So the stage tells it when the claim is being deleted.

// doomedClaim returns the UID of the claim of a stage's volume, if the claim is being deleted
// and the stage does not say so yet.
func (r *Reconciler) doomedClaim(ctx context.Context, stage *tarnv1.PavStage) (types.UID, error) {
	if stage.DeletionTimestamp != nil {
		return "", nil
	}
	vol, err := kube.Get(ctx, r.client, client.ObjectKey{Name: stage.Spec.VolumeName}, &corev1.PersistentVolume{})
	if err != nil || vol == nil || vol.UID != stage.Spec.VolumeUID || vol.Spec.ClaimRef == nil {
		return "", err
	}
	ref := vol.Spec.ClaimRef
	claim, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	if err != nil || claim == nil || claim.UID != ref.UID || claim.DeletionTimestamp == nil || claim.UID == stage.Status.Pod.ClaimDeleted {
		return "", err
	}
	return claim.UID, nil
}

// stagesOfClaim enqueues the stages of the volume of a claim.
func (r *Reconciler) stagesOfClaim() handler.EventHandler {
	return r.enqueue(byVolume, func(o client.Object) string { return o.(*corev1.PersistentVolumeClaim).Spec.VolumeName })
}

// doomed passes the event that the deletion of an object was requested.
func doomed() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetDeletionTimestamp() == nil && e.ObjectNew.GetDeletionTimestamp() != nil
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
