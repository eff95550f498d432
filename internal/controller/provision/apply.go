package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// apply carries out a plan. It returns true if the View has changed so that the next plan can
// follow at once.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) (bool, error) {
	switch p.Act {
	case ActNone:
		r.warn(v, p.Cause, p.Warning)
		return false, nil
	case ActRecord:
		return true, r.writeRecord(ctx, v)
	case ActReschedule:
		return false, r.reschedule(ctx, v)
	case ActBegin:
		return r.begin(ctx, v)
	case ActRevalidate:
		return false, r.revalidate(ctx, v)
	case ActCreate:
		return r.create(ctx, v, v.Record.Status.Attempts)
	case ActRecreate:
		return false, r.recreate(ctx, v)
	case ActStatus:
		if err := r.writeStatus(ctx, v, p.Status); err != nil {
			return false, err
		}
		r.warn(v, p.Cause, p.Warning)
		if p.WaitNote != "" && v.Claim != nil {
			r.events.Eventf(v.Claim, v.Record, corev1.EventTypeWarning, steppod.EventPodWaiting, p.WaitAction, "%s", kube.Note(p.WaitNote))
		}
		return p.Status.Phase == tarnv1.VolumeCreated, nil
	case ActWithdraw:
		return true, r.takeBack(ctx, v, p)
	case ActVolume:
		return true, r.writeVolume(ctx, v)
	case ActSettle:
		return false, r.settle(ctx, v)
	case ActDrop:
		return false, r.drop(ctx, v)
	}
	return false, nil
}

// warn posts a Warning about the claim.
func (r *reconciler) warn(v *View, cause, message string) {
	if message != "" && v.Claim != nil {
		r.events.Eventf(v.Claim, nil, corev1.EventTypeWarning, eventFailed, cause, "%s", kube.Note(message))
	}
}

// writeRecord creates the PavVolume after a live read of the claim. A stale cache must not start a
// creation for a claim that is gone, bound or replaced by another of its name.
func (r *reconciler) writeRecord(ctx context.Context, v *View) error {
	live, err := r.liveClaim(ctx, v.Claim)
	if err != nil {
		return err
	}
	if live == nil || live.Spec.VolumeName != "" || live.DeletionTimestamp != nil {
		return kube.ErrStale
	}
	record, err := newRecord(v)
	if err != nil {
		return err
	}
	if err := r.client.Create(ctx, record); apierrors.IsAlreadyExists(err) {
		return kube.ErrStale // its event enqueues the volume again
	} else if err != nil {
		return fmt.Errorf("writing PavVolume %s: %w", record.Name, err)
	}
	r.events.Eventf(v.Claim, nil, corev1.EventTypeNormal, eventStarted, "Provision",
		"PavProvisioner %q is creating a volume for claim %s/%s", v.Provisioner.Name, v.Claim.Namespace, v.Claim.Name)
	v.Record = record
	return nil
}

// liveClaim reads the claim from the API server, nil if the claim with that UID is gone.
func (r *reconciler) liveClaim(ctx context.Context, claim client.Object) (*corev1.PersistentVolumeClaim, error) {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{})
	if err != nil || live == nil || live.UID != claim.GetUID() {
		return nil, err
	}
	return live, nil
}

// begin starts an attempt with the validation. If validation needs no pod, it continues with the
// creation.
func (r *reconciler) begin(ctx context.Context, v *View) (bool, error) {
	// From now on the record keeps the provisioner from being deleted, unless it was deleted just
	// before. Nothing may begin that no provisioner can remove again.
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Provisioner), &pavv1.PavProvisioner{})
	if err != nil {
		return false, err
	}
	if live == nil || live.UID != v.Provisioner.UID || live.DeletionTimestamp != nil {
		return false, kube.ErrStale
	}
	attempt := v.Record.Status.Attempts + 1
	if followsNode(v) {
		if err := r.takeNode(ctx, v); err != nil {
			return false, r.giveUp(ctx, v, err, tarnv1.VolumePending, attempt)
		}
	}
	prepared, err := r.steps.PrepareValidation(ctx, v.Provisioner, v.Record, v.Claim, attempt)
	if err != nil {
		return false, r.giveUp(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	if prepared.Pod == nil {
		return r.create(ctx, v, attempt)
	}
	if err := r.writeStatus(ctx, v, begun(v.Record, tarnv1.VolumeValidating, attempt, prepared)); err != nil {
		return false, err
	}
	if err := r.start(ctx, v, prepared.Pod, tarnv1.VolumePending); err != nil {
		return false, err
	}
	return false, r.discardOthers(ctx, v, prepared.Pod.Name)
}

// create starts the creation of an attempt whose validation has succeeded.
func (r *reconciler) create(ctx context.Context, v *View, attempt int32) (bool, error) {
	if err := r.nodeGone(ctx, v.Record, tarnv1.StepCreation); err != nil {
		return false, r.giveUp(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	prepared, err := r.steps.PrepareCreation(ctx, v.Provisioner, v.Record, v.Claim, attempt)
	if err != nil {
		return false, r.giveUp(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	handle := prepared.Inputs.Handle
	if waits, err := r.yields(ctx, v, handle); err != nil || waits {
		return false, err
	}
	if prepared.Pod == nil {
		status, err := created(&View{Record: v.Record, Provisioner: v.Provisioner}, prepared.Inputs, nil)
		if err != nil {
			return false, r.giveUp(ctx, v, err, tarnv1.VolumePending, attempt)
		}
		status.Attempts = attempt
		if err := r.writeStatus(ctx, v, status); err != nil {
			return false, err
		}
		return true, r.discardOthers(ctx, v, "")
	}
	if err := prepared.MarkFirst(); err != nil {
		return false, err
	}
	if err := r.writeStatus(ctx, v, begun(v.Record, tarnv1.VolumeCreating, attempt, prepared)); err != nil {
		return false, err
	}
	// Now that the handle is in the record, the deletion of another volume with it waits.
	if waits, err := r.yields(ctx, v, handle); err != nil || waits {
		return false, err
	}
	if err := r.start(ctx, v, prepared.Pod, tarnv1.VolumePending); err != nil {
		return false, err
	}
	return false, r.discardOthers(ctx, v, prepared.Pod.Name)
}

// revalidate starts the current attempt's validation pod, which is not in the cache.
func (r *reconciler) revalidate(ctx context.Context, v *View) error {
	if err := r.confirm(ctx, v); err != nil {
		return err
	}
	if err := r.nodeGone(ctx, v.Record, tarnv1.StepValidation); err != nil {
		return r.giveUp(ctx, v, err, tarnv1.VolumePending, v.Record.Status.Attempts)
	}
	prepared, err := r.steps.PrepareValidation(ctx, v.Provisioner, v.Record, v.Claim, v.Record.Status.Attempts)
	if err != nil {
		return r.giveUp(ctx, v, err, tarnv1.VolumePending, v.Record.Status.Attempts)
	}
	if prepared.Pod == nil { // the provisioner changed meanwhile
		_, err := r.create(ctx, v, v.Record.Status.Attempts)
		return err
	}
	return r.startAgain(ctx, v, prepared, tarnv1.VolumePending)
}

// recreate starts the current attempt's creation pod, which is not in the cache: it was not started
// before a crash, or it vanished. An earlier pod may have run, so a failure now is undone. For the
// same reason the new pod is not marked as the first: even if it never gets a node, there may be
// something to undo.
func (r *reconciler) recreate(ctx context.Context, v *View) error {
	if err := r.confirm(ctx, v); err != nil {
		return err
	}
	if err := r.nodeGone(ctx, v.Record, tarnv1.StepCreation); err != nil {
		return r.giveUp(ctx, v, err, tarnv1.VolumeUndoing, v.Record.Status.Attempts)
	}
	prepared, err := r.steps.PrepareCreation(ctx, v.Provisioner, v.Record, v.Claim, v.Record.Status.Attempts)
	if err == nil && prepared.Pod == nil {
		err = &steppod.StepError{Step: tarnv1.StepCreation, Reason: steppod.ReasonInvalid,
			Message: "spec.volumeCreation lost its podTemplate while a creation pod was running"}
	}
	if err != nil {
		return r.giveUp(ctx, v, err, tarnv1.VolumeUndoing, v.Record.Status.Attempts)
	}
	return r.startAgain(ctx, v, prepared, tarnv1.VolumeUndoing)
}

// startAgain starts the pod of the current attempt. First it records the pod's namespace and handle
// if the template gives others by now. If a volume with that handle is being deleted, the creation,
// which may have run, is undone after it.
func (r *reconciler) startAgain(ctx context.Context, v *View, prepared *steppod.Prepared, onRefusal tarnv1.VolumePhase) error {
	if s := v.Record.Status; s.PodNamespace != prepared.Pod.Namespace || s.Handle != prepared.Inputs.Handle {
		if err := r.writeStatus(ctx, v, begun(v.Record, s.Phase, s.Attempts, prepared)); err != nil {
			return err
		}
	}
	holder, err := r.goingHolder(ctx, v, prepared.Inputs.Handle)
	if err != nil {
		return err
	}
	if holder != nil {
		return r.giveWay(ctx, v, []kube.Holder{*holder})
	}
	return r.start(ctx, v, prepared.Pod, onRefusal)
}

// confirm makes sure that the API server has the record as the cache shows it. Otherwise a cache
// that is behind could restart a pod that finished and was removed.
func (r *reconciler) confirm(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Record), &tarnv1.PavVolume{})
	if err != nil {
		return err
	}
	if live == nil || live.ResourceVersion != v.Record.ResourceVersion {
		return kube.ErrStale
	}
	return nil
}

func (r *reconciler) start(ctx context.Context, v *View, pod *corev1.Pod, onRefusal tarnv1.VolumePhase) error {
	if err := r.steps.Start(ctx, pod); err != nil {
		return r.giveUp(ctx, v, err, onRefusal, v.Record.Status.Attempts)
	}
	return nil
}

// giveUp records a StepError; it returns any other error unchanged.
func (r *reconciler) giveUp(ctx context.Context, v *View, err error, into tarnv1.VolumePhase, attempt int32) error {
	step := steppod.AsStepError(err)
	if step == nil {
		return err
	}
	if err := r.writeStatus(ctx, v, failed(v, step, into, attempt, r.clock.Now())); err != nil {
		return err
	}
	r.warn(v, attemptCause(attempt), step.Message)
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, v *View, status *tarnv1.PavVolumeStatus) error {
	record := v.Record.DeepCopy()
	record.Status = *status
	if err := r.client.Status().Update(ctx, record); err != nil {
		return fmt.Errorf("writing the status of PavVolume %s: %w", record.Name, err)
	}
	v.Record = record
	return nil
}

// writeVolume creates the PersistentVolume, or hands the volume to reclaim if the claim is gone. If
// the claim is deleted right after this check, a Released volume results, which reclaim handles by
// its policy.
func (r *reconciler) writeVolume(ctx context.Context, v *View) error {
	claim := &corev1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.UID = v.Record.Spec.Claim.Namespace, v.Record.Spec.Claim.Name, v.Record.Spec.Claim.UID
	live, err := r.liveClaim(ctx, claim)
	if err != nil {
		return err
	}
	if live == nil || live.Spec.VolumeName != "" && live.Spec.VolumeName != v.VolumeName {
		vol, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
		if err != nil {
			return err
		}
		if vol != nil && isOf(vol, v.Record) {
			v.Volume = vol // written before a crash: it was handed over
			return nil
		}
		return r.writeStatus(ctx, v, undo(v, reasonClaimGone, "the claim was deleted while its volume was being created").Status)
	}
	// By now the handle is in the record. The creation of another volume that returned the same
	// handle finds it there.
	holders, err := r.handles.Holders(ctx, v.Record.Spec.Provisioner.Name, v.Record.Status.Handle, v.VolumeName)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return r.giveWay(ctx, v, holders)
	}
	vol, err := newVolume(v.Record)
	if err != nil {
		return err
	}
	if err := r.tie(ctx, vol, v.Record.Status.NodeName); err != nil {
		return err
	}
	err = r.client.Create(ctx, vol)
	if apierrors.IsAlreadyExists(err) {
		return r.adoptVolume(ctx, v)
	}
	if kube.IsRefusal(err) {
		return r.unwritten(ctx, v, reasonRefused, fmt.Errorf("the API server rejects PersistentVolume %s: %w", vol.Name, err))
	}
	if err != nil {
		return fmt.Errorf("writing PersistentVolume %s: %w", vol.Name, err)
	}
	r.events.Eventf(live, nil, corev1.EventTypeNormal, eventSucceeded, "Provision", "PersistentVolume %s is created", vol.Name)
	v.Volume = vol
	return nil
}

// settle records that the PersistentVolume exists, and removes the creation pod, whose results are
// recorded.
func (r *reconciler) settle(ctx context.Context, v *View) error {
	if !meta.IsStatusConditionTrue(v.Record.Status.Conditions, tarnv1.ConditionProvisioned) {
		status := v.Record.Status.DeepCopy()
		say(status, v.Record, reasonProvisioned, "PersistentVolume "+v.VolumeName+" is made")
		if err := r.writeStatus(ctx, v, status); err != nil {
			return err
		}
	}
	return r.discardPods(ctx, v, func(pod *corev1.Pod) bool {
		// A deletion pod, or a creation pod that creates the volume again, may already run.
		step := tarnv1.Step(pod.Labels[tarnv1.LabelStep])
		return pod.Labels[tarnv1.LabelScrub] == "" && (step == tarnv1.StepValidation || step == tarnv1.StepCreation)
	})
}

// discardOthers removes the record's pods except the named one. Pods of earlier steps and attempts
// were kept until now, so that the provisioner's author could read their logs.
func (r *reconciler) discardOthers(ctx context.Context, v *View, keep string) error {
	return r.discardPods(ctx, v, func(pod *corev1.Pod) bool { return pod.Name != keep })
}

func (r *reconciler) discardPods(ctx context.Context, v *View, those func(*corev1.Pod) bool) error {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.MatchingLabels{tarnv1.LabelRecord: string(v.Record.UID)}); err != nil {
		return fmt.Errorf("listing the pods of PavVolume %s: %w", v.Record.Name, err)
	}
	for i := range pods.Items {
		if !steppod.OwnedBy(&pods.Items[i], v.Record.UID) || !those(&pods.Items[i]) {
			continue
		}
		if err := r.steps.Discard(ctx, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// drop removes a record without storage, and its pods.
func (r *reconciler) drop(ctx context.Context, v *View) error {
	if err := r.confirm(ctx, v); err != nil {
		return err
	}
	if err := r.discardOthers(ctx, v, ""); err != nil {
		return err
	}
	record := v.Record.DeepCopy()
	if err := kube.RemoveFinalizer(ctx, r.client, record, tarnv1.FinalizerRecord); err != nil {
		return err
	}
	err := r.client.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PavVolume %s: %w", record.Name, err)
	}
	return nil
}
