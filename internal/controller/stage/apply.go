package stage

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// eventAction is the action that Events name.
const eventAction = "Stage"

// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages,verbs=patch;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply carries out a plan up to the first error. The view's stage is the reconcile's own copy.
// Each write updates it to the API server's version, against which the next write is checked.
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
		return r.writeStatus(ctx, stage, a.Status)
	case ConfirmSole:
		rival, err := r.rival(ctx, a.Volume)
		if err == nil && rival != "" {
			err = &steppod.StepError{Step: tarnv1.StepStaging, Reason: steppod.ReasonHandleTaken, Message: shared(rival)}
		}
		return err
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
	case EndOther:
		err := r.client.Delete(ctx, a.Stage, client.Preconditions{UID: &a.Stage.UID, ResourceVersion: &a.Stage.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting PavStage %s: %w", a.Stage.Name, err)
		}
		return nil
	case EndStage:
		only := client.Preconditions{UID: &stage.UID}
		if a.Unchanged {
			only.ResourceVersion = &stage.ResourceVersion
		}
		err := r.client.Delete(ctx, stage, only)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting PavStage %s: %w", stage.Name, err)
		}
		return nil
	case Post:
		r.post(stage, v.Claim, a)
		return nil
	case PostWait:
		r.events.Eventf(stage, nil, corev1.EventTypeWarning, steppod.EventPodWaiting, a.Action, "%s", a.Note)
		if v.Claim != nil {
			r.events.Eventf(v.Claim, stage, corev1.EventTypeWarning, steppod.EventPodWaiting, a.Action, "%s", a.Note)
		}
		return nil
	case HurryPod:
		err := r.client.Delete(ctx, a.Pod, client.Preconditions{UID: &a.Pod.UID}, client.GracePeriodSeconds(hurry))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting pod %s/%s: %w", a.Pod.Namespace, a.Pod.Name, err)
		}
		return nil
	case Tell:
		r.events.Eventf(a.Pod, stage, a.Type, a.Reason, eventAction, "%s", a.Note)
		return nil
	case RaiseGuard:
		return r.raiseGuard(ctx, stage)
	case DropGuard:
		return r.dropGuard(ctx, v.Guard)
	}
	return fmt.Errorf("stage: unknown action %T", a)
}

// maxMeetings is how many concurrent writes of the node agent writeStatus tolerates before it
// leaves the stage to the next reconcile.
const maxMeetings = 3

// writeStatus writes the controller's part of the status, unless the stage has changed in a way
// that matters to the plan. The node agent writes its own part, and its targets just as the
// staging pod begins. Those writes are no reason to wait for the cache.
func (r *Reconciler) writeStatus(ctx context.Context, stage *tarnv1.PavStage, status tarnv1.PavStagePodStatus) error {
	r.catchUp(ctx, stage)
	for meetings := 0; ; meetings++ {
		base := stage.DeepCopy()
		stage.Status.Pod = status
		err := r.client.Status().Patch(ctx, stage, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if err == nil {
			return nil
		}
		err = fmt.Errorf("writing status of PavStage %s: %w", base.Name, err)
		if !apierrors.IsConflict(err) || meetings == maxMeetings {
			return err
		}
		fresh := &tarnv1.PavStage{}
		if readErr := r.live.Get(ctx, client.ObjectKeyFromObject(base), fresh); readErr != nil {
			return fmt.Errorf("reading PavStage %s: %w", base.Name, readErr)
		}
		if movedOn(base, fresh) {
			return err
		}
		*stage = *fresh
	}
}

// catchUp takes a newer version of the stage from the cache, if only the node agent has written
// since. That avoids a rejected write and the live read after it.
func (r *Reconciler) catchUp(ctx context.Context, stage *tarnv1.PavStage) {
	fresh := &tarnv1.PavStage{}
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(stage), fresh); err == nil && !movedOn(stage, fresh) {
		*stage = *fresh
	}
}

// movedOn reports whether anything that a plan depends on differs. A new stage has no phase of
// its node, and gets its first phase with its first target.
func movedOn(a, b *tarnv1.PavStage) bool {
	return a.UID != b.UID || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		cmp.Or(a.Status.Node.Phase, tarnv1.StageWaiting) != cmp.Or(b.Status.Node.Phase, tarnv1.StageWaiting) || !equality.Semantic.DeepEqual(a.Status.Node.Loss, b.Status.Node.Loss) ||
		!equality.Semantic.DeepEqual(a.Status.Pod, b.Status.Pod)
}

// post emits a Warning on the stage, and on the claim, where users look for it.
func (r *Reconciler) post(stage *tarnv1.PavStage, claim *corev1.PersistentVolumeClaim, p Post) {
	if claim == nil {
		r.events.Eventf(stage, nil, corev1.EventTypeWarning, p.Reason, eventAction, "%s", p.Note)
		return
	}
	r.events.Eventf(stage, claim, corev1.EventTypeWarning, p.Reason, eventAction, "%s", p.Note)
	r.events.Eventf(claim, stage, corev1.EventTypeWarning, p.Reason, eventAction, "%s", p.Note)
}
