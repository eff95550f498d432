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

// maxMeetings is how many writes of the node agent may come between reading a stage
// and writing it before the stage is looked at anew.
const maxMeetings = 3

// writeStatus writes our part of the status, unless the stage has moved on. The node
// agent writes its own part, and its targets just when the staging pod is begun:
// where nothing that a plan depends on has changed, that is no reason to wait for
// the cache.
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

// catchUp takes what the cache has heard of the stage since it was gathered, where that
// is no more than the node agent's writes: it spares a write that is refused, and the
// live read after it.
func (r *Reconciler) catchUp(ctx context.Context, stage *tarnv1.PavStage) {
	fresh := &tarnv1.PavStage{}
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(stage), fresh); err == nil && !movedOn(stage, fresh) {
		*stage = *fresh
	}
}

// movedOn says whether anything a plan depends on differs. A stage is born without a
// phase of its node, and gets the first one with its first target.
func movedOn(a, b *tarnv1.PavStage) bool {
	return a.UID != b.UID || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		cmp.Or(a.Status.Node.Phase, tarnv1.StageWaiting) != cmp.Or(b.Status.Node.Phase, tarnv1.StageWaiting) || !equality.Semantic.DeepEqual(a.Status.Node.Loss, b.Status.Node.Loss) ||
		!equality.Semantic.DeepEqual(a.Status.Pod, b.Status.Pod)
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
