package recycle

import (
	"cmp"
	"context"
	"fmt"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=create;delete;patch,namespace=tarn-system
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply carries out a plan up to the first error. If the binder or tarn undelete has changed
// the volume meanwhile, a write of it fails.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) error {
	err := r.runner.Do(ctx, p.Actions...)
	if err == nil && p.Step != nil {
		err = r.runStep(ctx, v, *p.Step)
	}
	if err == nil {
		err = r.runner.Do(ctx, p.Report...)
	}
	return err
}

// runStep starts a pod of the provisioner, unless another volume uses the storage that it would
// destroy. It records a lasting obstacle on the volume.
func (r *reconciler) runStep(ctx context.Context, v *View, run Step) error {
	err := r.confirmSole(ctx, v, run)
	if err == nil {
		err = r.startStep(ctx, v, run)
	}
	if s := steppod.AsStepError(err); s != nil {
		return r.runner.Do(ctx, action.Patch{From: v.Volume, To: noted(v, r.clock.Now(), s.Message)})
	}
	return err
}

func (r *reconciler) startStep(ctx context.Context, v *View, run Step) error {
	if v.Provisioner == nil {
		return &steppod.StepError{Step: run.Step, Message: fmt.Sprintf("PavProvisioner %q, which has begun to recycle the volume, is gone", v.Record.Spec.Provisioner.Name)}
	}
	pod, err := r.steps.PrepareRecycling(ctx, run.Step, v.Provisioner, steppod.Passage{
		Record: v.Record, Volume: v.Volume, Claim: v.passage(), Method: run.Method, Handle: run.Handle,
	})
	if err != nil {
		return err
	}
	pod.Labels[tarnv1.LabelScrub] = string(v.Volume.UID)
	pod.Annotations[annClaim], pod.Annotations[annMethod] = string(v.passage()), string(run.Method)
	return r.steps.Start(ctx, pod)
}

// confirmSole fails if another volume has the handle whose storage a step changes.
func (r *reconciler) confirmSole(ctx context.Context, v *View, run Step) error {
	if run.Step == tarnv1.StepCreation {
		return nil
	}
	handle := cmp.Or(run.Handle, v.Record.Status.Handle, steppod.DefaultHandle(v.Record))
	holders, err := r.handles.Holders(ctx, v.Record.Spec.Provisioner.Name, handle, v.Record.Name)
	if err != nil || len(holders) == 0 {
		return err
	}
	return &steppod.StepError{Step: run.Step, Reason: steppod.ReasonHandleTaken, Message: fmt.Sprintf(
		"%s has volumeHandle %q too, so the %s pod would delete its data; delete that volume, or remove annotation %s from this one", holders[0], handle, run.Step, tarnv1.AnnotationRecycle)}
}
