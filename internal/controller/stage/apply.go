package stage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// eventAction is what Events say was being done.
const eventAction = "Stage"

// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages,verbs=patch;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply does what a plan says, up to the first error. The view's stage is the
// reconcile's own copy; each write leaves it as the API server has it, so that the
// next one is checked against that.
func (r *Reconciler) apply(ctx context.Context, v View, p Plan) error {
	for _, a := range p.Actions {
		if err := r.do(ctx, v, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) do(ctx context.Context, v View, a Action) error {
	stage := v.Stage
	switch a := a.(type) {
	case WriteStatus:
		base := stage.DeepCopy()
		stage.Status.Pod = a.Status
		err := r.client.Status().Patch(ctx, stage, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if err != nil {
			return fmt.Errorf("writing status of PavStage %s: %w", stage.Name, err)
		}
		return nil
	case StartPod:
		return r.steps.Start(ctx, a.Pod.DeepCopy())
	case DiscardPod:
		return r.steps.Discard(ctx, a.Pod)
	case LetGo:
		base := stage.DeepCopy()
		stage.Finalizers = slices.DeleteFunc(stage.Finalizers, func(f string) bool { return slices.Contains(a.Finalizers, f) })
		err := r.client.Patch(ctx, stage, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing finalizers of PavStage %s: %w", stage.Name, err)
		}
		return nil
	case EndStage:
		err := r.client.Delete(ctx, stage, client.Preconditions{UID: &stage.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting PavStage %s: %w", stage.Name, err)
		}
		return nil
	case Post:
		r.post(stage, v.Claim, a)
		return nil
	}
	return fmt.Errorf("stage: no way to apply %T", a)
}

// post posts a Warning on the stage, and on the claim, which is where a user looks.
func (r *Reconciler) post(stage *tarnv1.PavStage, claim *corev1.PersistentVolumeClaim, p Post) {
	if claim == nil {
		r.events.Eventf(stage, nil, corev1.EventTypeWarning, p.Reason, eventAction, "%s", p.Note)
		return
	}
	r.events.Eventf(stage, claim, corev1.EventTypeWarning, p.Reason, eventAction, "%s", p.Note)
	r.events.Eventf(claim, stage, corev1.EventTypeWarning, p.Reason, eventAction, "%s", p.Note)
}
