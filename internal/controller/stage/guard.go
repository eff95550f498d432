package stage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// The staging pod must outlive the pods that use its volume. A drain evicts all pods of a node
// at once. So the staging pod has a disruption budget that forbids its eviction. The drain
// retries until the last consumer is gone; then the stage ends and its pod is deleted.

// guardName is the name of a stage's disruption budget.
func guardName(stage *tarnv1.PavStage) string { return "pav-staging-" + string(stage.UID) }

// guard creates the budget if it is due: while pods may use the volume and the staging pod
// runs.
func guard(v View, status tarnv1.PavStagePodStatus) []Action {
	if v.Guard != nil || !isStaged(v.Stage) || status.Phase != tarnv1.StagePodRunning {
		return nil
	}
	return []Action{RaiseGuard{}}
}

// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=create;delete

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
		r.events.Eventf(stage, nil, corev1.EventTypeWarning, ReasonUnguarded, eventAction, "no disruption budget for the staging pod: %v", err)
		return nil
	}
	return fmt.Errorf("creating PodDisruptionBudget %s/%s: %w", budget.Namespace, budget.Name, err)
}

// dropGuard deletes the budget.
func (r *Reconciler) dropGuard(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	err := r.client.Delete(ctx, budget, client.Preconditions{UID: &budget.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting PodDisruptionBudget %s/%s: %w", budget.Namespace, budget.Name, err)
	}
	return nil
}
