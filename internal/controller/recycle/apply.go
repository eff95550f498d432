package recycle

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// eventAction is the action that Events name.
const eventAction = "Recycle"

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=create;delete;patch,namespace=tarn-system
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply carries out a plan up to the first error.
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
	case Order:
		return r.create(ctx, a.Claim)
	case Dismiss:
		return r.delete(ctx, a.Claim, client.Preconditions{UID: &a.Claim.UID})
	case Nudge:
		return r.annotate(ctx, a.Claim, annNudged, a.Claim.Spec.VolumeName)
	case Remember:
		return r.annotate(ctx, a.Claim, annWaits, a.Waits)
	case StartPod:
		return r.create(ctx, a.Pod)
	case StopPod:
		return r.delete(ctx, a.Pod, client.Preconditions{UID: &a.Pod.UID})
	case Change:
		return r.change(ctx, v.Volume, a.To)
	case Fail:
		return r.phase(ctx, v.Volume, corev1.VolumeFailed, eventFailed, a.Message)
	case Unfail:
		return r.phase(ctx, v.Volume, a.Phase, "", "")
	case RunStep:
		return r.runStep(ctx, v, a)
	case Report:
		return r.report(ctx, v.Record, a.Condition)
	case Post:
		r.events.Eventf(v.Volume, nil, a.Type, a.Reason, eventAction, "%s", kube.Note(a.Note))
		return nil
	}
	return fmt.Errorf("recycle: unknown action %T", a)
}

// create creates an object. If the name exists already, the cache was stale, and the object's
// event triggers the next reconcile of the volume.
func (r *reconciler) create(ctx context.Context, o client.Object) error {
	if err := r.client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

func (r *reconciler) delete(ctx context.Context, o client.Object, only client.Preconditions) error {
	if err := r.client.Delete(ctx, o, only); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

// annotate sets an annotation of a claim, or removes it if value is empty.
func (r *reconciler) annotate(ctx context.Context, claim *corev1.PersistentVolumeClaim, key, value string) error {
	to := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&to.ObjectMeta, key, value)
	if value == "" {
		delete(to.Annotations, key)
	}
	if err := r.client.Patch(ctx, to, client.MergeFrom(claim)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing claim %s: %w", claim.Name, err)
	}
	return nil
}

// runStep starts a pod of the provisioner, unless another volume uses the storage that it would
// destroy. It records a lasting obstacle on the volume.
func (r *reconciler) runStep(ctx context.Context, v *View, run RunStep) error {
	err := r.confirmSole(ctx, v, run)
	if err == nil {
		err = r.startStep(ctx, v, run)
	}
	if s := steppod.AsStepError(err); s != nil {
		return r.change(ctx, v.Volume, noted(v.Volume, v.passage(), r.clock.Now(), s.Message))
	}
	return err
}

func (r *reconciler) startStep(ctx context.Context, v *View, run RunStep) error {
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
func (r *reconciler) confirmSole(ctx context.Context, v *View, run RunStep) error {
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

// report writes a condition of a record, if the record is unchanged since it was read.
func (r *reconciler) report(ctx context.Context, record *tarnv1.PavVolume, c metav1.Condition) error {
	record = record.DeepCopy()
	meta.SetStatusCondition(&record.Status.Conditions, c)
	if err := r.client.Status().Update(ctx, record); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of PavVolume %s: %w", record.Name, err)
	}
	return nil
}

// change writes a volume. If the binder or tarn undelete has changed it meanwhile, the write
// fails.
func (r *reconciler) change(ctx context.Context, from, to *corev1.PersistentVolume) error {
	err := r.client.Patch(ctx, to, client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing PersistentVolume %s: %w", from.Name, err)
	}
	return nil
}

func (r *reconciler) phase(ctx context.Context, vol *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, reason, message string) error {
	to := vol.DeepCopy()
	to.Status.Phase, to.Status.Reason, to.Status.Message = phase, reason, message
	err := r.client.Status().Patch(ctx, to, client.MergeFromWithOptions(vol, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the phase of PersistentVolume %s: %w", vol.Name, err)
	}
	return nil
}
