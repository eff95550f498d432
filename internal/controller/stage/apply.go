package stage

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
)

// eventAction is the action that Events name.
const eventAction = "Stage"

// The controller's own actions. What they are about shares memory with the view: each write
// updates the stage to the API server's version.
type (
	// WriteStatus writes the stage controller's part of the status.
	WriteStatus struct {
		action.Own
		Stage  *tarnv1.PavStage
		Status tarnv1.PavStagePodStatus
	}
	// ConfirmSole checks again whether a stage of another volume has the same handle, now that
	// this stage is recorded. If two begin at once, at least one gives way.
	ConfirmSole struct {
		action.Own
		Volume *corev1.PersistentVolume
	}
	// LetGo removes finalizers from the stage in one write.
	LetGo struct {
		action.Own
		Stage      *tarnv1.PavStage
		Finalizers []string
	}
	// RaiseGuard creates the disruption budget that keeps the staging pod.
	RaiseGuard struct {
		action.Own
		Stage *tarnv1.PavStage
	}
)

// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages,verbs=patch;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// own does the controller's own actions.
func (r *Reconciler) own(ctx context.Context, a action.Action) (client.Object, error) {
	switch a := a.(type) {
	case WriteStatus:
		return a.Stage, r.writeStatus(ctx, a.Stage, a.Status)
	case ConfirmSole:
		rival, err := r.rival(ctx, a.Volume)
		if err == nil && rival != "" {
			err = &steppod.StepError{Step: tarnv1.StepStaging, Reason: steppod.ReasonHandleTaken, Message: shared(rival)}
		}
		return nil, err
	case LetGo:
		base := a.Stage.DeepCopy()
		a.Stage.Finalizers = slices.DeleteFunc(a.Stage.Finalizers, func(f string) bool { return slices.Contains(a.Finalizers, f) })
		err := r.client.Patch(ctx, a.Stage, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("removing finalizers of PavStage %s: %w", a.Stage.Name, err)
		}
		return a.Stage, nil
	case RaiseGuard:
		return nil, r.raiseGuard(ctx, a.Stage)
	}
	return nil, fmt.Errorf("stage: unknown action %T", a)
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

// The staging pod must outlive the pods that use its volume. A drain evicts all pods of a node
// at once. So the staging pod has a disruption budget that forbids its eviction. The drain
// retries until the last consumer is gone; then the stage ends and its pod is deleted.

// guardName is the name of a stage's disruption budget.
func guardName(stage *tarnv1.PavStage) string { return "pav-staging-" + string(stage.UID) }

// guard creates the budget if it is due: while pods may use the volume and the staging pod
// runs.
func guard(v View, status tarnv1.PavStagePodStatus) []action.Action {
	if v.Guard != nil || !isStaged(v.Stage) || status.Phase != tarnv1.StagePodRunning {
		return nil
	}
	return []action.Action{RaiseGuard{Stage: v.Stage}}
}

// raiseGuard creates the budget. The budget has minAvailable 1 rather than maxUnavailable 0,
// because Kubernetes can count that without knowing the pod's controller. If the namespace
// accepts no budget, the pod has none.
func (r *Reconciler) raiseGuard(ctx context.Context, stage *tarnv1.PavStage) error {
	least := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: stage.Status.Pod.Namespace, Name: guardName(stage),
			Labels: map[string]string{
				tarnv1.LabelProvisioner: stage.Spec.Provisioner.Name, tarnv1.LabelVolume: tarnv1.VolumeLabel(stage.Spec.VolumeName),
				tarnv1.LabelStep: string(tarnv1.StepStaging), tarnv1.LabelStage: string(stage.UID),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: tarnv1.GroupVersion.String(), Kind: "PavStage", Name: stage.Name, UID: stage.UID, Controller: ptr.To(true),
			}},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
				tarnv1.LabelStage: string(stage.UID), tarnv1.LabelStep: string(tarnv1.StepStaging),
			}},
		},
	}
	err := r.client.Create(ctx, budget)
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err):
		log.FromContext(ctx).Error(err, "the staging pod has no disruption budget, so a drain may end it before its consumers", "namespace", budget.Namespace)
		return r.runner.Do(ctx, View{Stage: stage}.warn(ReasonUnguarded, fmt.Sprintf("no disruption budget for the staging pod: %v", err))...)
	}
	return fmt.Errorf("creating PodDisruptionBudget %s/%s: %w", budget.Namespace, budget.Name, err)
}
