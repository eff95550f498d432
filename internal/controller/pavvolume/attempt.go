package pavvolume

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// writeRecord creates the PavVolume after a live read of the claim. A stale cache must not start a
// creation for a claim that is gone, bound or replaced by another of its name.
func (r *reconciler) writeRecord(ctx context.Context, v *View) error {
	live, err := r.liveClaim(ctx, v)
	if err != nil {
		return err
	}
	if live == nil || live.Spec.VolumeName != "" || live.DeletionTimestamp != nil {
		return kube.ErrStale
	}
	if v.Source, err = r.gatherSource(ctx, r.reader, live, v.Provisioner); err != nil {
		return err
	}
	if unsourced(v) != "" {
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
	v.Record = record
	tell := []action.Action{action.Emit{About: v.Claim, Type: corev1.EventTypeNormal, Reason: eventStarted, Doing: "Provision",
		Note: fmt.Sprintf("PavProvisioner %q is creating a volume for claim %s/%s", v.Provisioner.Name, v.Claim.Namespace, v.Claim.Name)}}
	if unknown := steppod.UnknownParameters(v.Provisioner, v.Class); len(unknown) > 0 { // the claim is served all the same, as by any CSI driver
		tell = append(tell, tellClaim(v, corev1.EventTypeWarning, eventUnknownParameter, "Provision",
			strings.Join(unknown, " ")+" (create the class and the claim again to change that)")...)
	}
	return r.runner.Do(ctx, tell...)
}

// begin starts an attempt with the validation. If validation needs no pod, it continues with the
// creation.
func (r *reconciler) begin(ctx context.Context, v *View) (more bool, err error) {
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
	if err := r.takeAnyNode(ctx, v); err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	if err := r.confirmSource(ctx, v); err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	prepared, err := r.steps.PrepareValidation(ctx, v.Provisioner, v.Record, v.Claim, attempt)
	if err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	if prepared.Pod == nil {
		return r.create(ctx, v, attempt)
	}
	if _, err := r.apply(ctx, v, begun(v, tarnv1.VolumeValidating, attempt, prepared, nil)); err != nil {
		return false, err
	}
	// Now that the phase is in the record, the deletion of the source waits.
	if err := r.confirmSource(ctx, v); err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	return r.start(ctx, v, prepared.Pod, nil, tarnv1.VolumePending)
}

// takeAnyNode makes the new attempt run on the node that it depends on, if it depends on one.
func (r *reconciler) takeAnyNode(ctx context.Context, v *View) error {
	switch {
	case followsSource(v.Record):
		return r.runOn(ctx, v, v.Record.Spec.Source.NodeName, "on which the data source lies")
	case followsNode(v):
		return r.takeNode(ctx, v)
	}
	return nil
}

// create starts the creation of an attempt whose validation has succeeded.
func (r *reconciler) create(ctx context.Context, v *View, attempt int32) (more bool, err error) {
	if err := r.nodeGone(ctx, v, tarnv1.StepCreation); err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	prepared, err := r.steps.PrepareCreation(ctx, v.Provisioner, v.Record, v.Claim, attempt)
	if err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	claims, err := r.prepareClaims(ctx, v, prepared)
	if err != nil {
		return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
	}
	handle := prepared.Inputs.Handle
	if waits, err := r.yields(ctx, v, handle); err != nil || waits {
		return false, err
	}
	if prepared.Pod == nil {
		status, err := created(v, nil, prepared.Inputs, nil)
		if err != nil {
			return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
		}
		status.Attempts = attempt
		return r.apply(ctx, v, writes(v, status, action.DiscardPods{Pods: v.Pods}))
	}
	if err := prepared.MarkFirst(); err != nil {
		return false, err
	}
	held := volume.Copies(v.Record)
	if _, err := r.apply(ctx, v, begun(v, tarnv1.VolumeCreating, attempt, prepared, claims)); err != nil {
		return false, err
	}
	// Now that the handle is in the record, the deletion of another volume with it waits.
	if waits, err := r.yields(ctx, v, handle); err != nil || waits {
		return false, err
	}
	if !held { // the same holds for the deletion of the source
		if err := r.confirmSource(ctx, v); err != nil {
			return r.fail(ctx, v, err, tarnv1.VolumePending, attempt)
		}
	}
	return r.start(ctx, v, prepared.Pod, claims, tarnv1.VolumePending)
}

// prepareClaims evaluates the claims that a creation needs, which its pod mounts.
func (r *reconciler) prepareClaims(ctx context.Context, v *View, prepared *steppod.Prepared) ([]*corev1.PersistentVolumeClaim, error) {
	claims, err := r.steps.PrepareClaims(ctx, v.Provisioner, v.Record, v.Claim, 0)
	if err == nil && len(claims) > 0 && prepared.Pod == nil {
		err = &steppod.StepError{Step: tarnv1.StepCreation, Reason: steppod.ReasonInvalid,
			Message: "spec.volumeCreation has no podTemplate, but a creation pod must mount the claims of spec.claims"}
	}
	return claims, err
}

// restart starts the pod of the current attempt, which is not in the cache: it was not started
// before a crash, or it vanished. An earlier creation pod may have run, so a failure now is undone.
// For the same reason the new pod is not marked as the first: even if it never gets a node, there
// may be something to undo.
func (r *reconciler) restart(ctx context.Context, v *View) (more bool, err error) {
	// A cache that is behind could restart a pod that finished and was removed.
	if err := r.runner.Do(ctx, action.Confirm{Object: v.Record}); err != nil {
		return false, err
	}
	step, attempt := stepOf(v.Record), v.Record.Status.Attempts
	prepare, onFailure := r.steps.PrepareCreation, tarnv1.VolumeUndoing
	if step == tarnv1.StepValidation {
		prepare, onFailure = r.steps.PrepareValidation, tarnv1.VolumePending
	}
	if err := r.nodeGone(ctx, v, step); err != nil {
		return r.fail(ctx, v, err, onFailure, attempt)
	}
	prepared, err := prepare(ctx, v.Provisioner, v.Record, v.Claim, attempt)
	switch {
	case err != nil:
	case prepared.Pod == nil && step == tarnv1.StepValidation: // the provisioner changed meanwhile
		return r.create(ctx, v, attempt)
	case prepared.Pod == nil:
		err = &steppod.StepError{Step: tarnv1.StepCreation, Reason: steppod.ReasonInvalid,
			Message: "spec.volumeCreation lost its podTemplate while a creation pod was running"}
	}
	if err != nil {
		return r.fail(ctx, v, err, onFailure, attempt)
	}
	var claims []*corev1.PersistentVolumeClaim
	if step == tarnv1.StepCreation {
		if claims, err = r.prepareClaims(ctx, v, prepared); err != nil {
			return r.fail(ctx, v, err, onFailure, attempt)
		}
	}
	// The template may give another namespace and handle by now, and other claims.
	if s := v.Record.Status; s.PodNamespace != prepared.Pod.Namespace || s.Handle != prepared.Inputs.Handle || len(withClaims(s.Claims, claims)) > len(s.Claims) {
		if _, err := r.apply(ctx, v, begun(v, s.Phase, s.Attempts, prepared, claims)); err != nil {
			return false, err
		}
	}
	holder, err := r.goingHolder(ctx, v, prepared.Inputs.Handle)
	if err != nil {
		return false, err
	}
	if holder != nil { // the creation, which may have run, is undone after that volume
		_, err := r.unlessWritten(ctx, v, giveWay(v, []kube.Holder{*holder}, r.clock.Now()))
		return false, err
	}
	return r.start(ctx, v, prepared.Pod, claims, onFailure)
}

// start makes the claims of an attempt, and starts its pod. Pods of earlier steps and attempts were kept until now, so that
// the provisioner's author could read their logs.
func (r *reconciler) start(ctx context.Context, v *View, pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim, onRefusal tarnv1.VolumePhase) (more bool, err error) {
	if err := r.makeClaims(ctx, v, claims); err != nil {
		return r.fail(ctx, v, err, onRefusal, v.Record.Status.Attempts)
	}
	if err := r.runner.Do(ctx, action.StartPod{Pod: pod}); err != nil {
		return r.fail(ctx, v, err, onRefusal, v.Record.Status.Attempts)
	}
	return false, r.runner.Do(ctx, action.DiscardPods{Pods: v.podsWith(func(other *corev1.Pod) bool { return other.Name != pod.Name })})
}

// fail records a StepError of an attempt; it returns any other error unchanged.
func (r *reconciler) fail(ctx context.Context, v *View, err error, into tarnv1.VolumePhase, attempt int32) (more bool, _ error) {
	step := steppod.AsStepError(err)
	if step == nil {
		return false, err
	}
	return r.apply(ctx, v, failed(v, step, into, attempt, r.clock.Now()))
}

// handOver makes sure that the PersistentVolume exists, records that, and removes the pods of the
// creation, whose results are recorded.
func (r *reconciler) handOver(ctx context.Context, v *View) (more bool, err error) {
	if v.Volume == nil || !isOf(v.Volume, v.Record) {
		instead, err := r.writeVolume(ctx, v)
		if err != nil || instead != nil {
			return false, err
		}
	}
	status := v.Record.Status.DeepCopy()
	sayProvisioned(status, v.Record, reasonProvisioned, "PersistentVolume "+v.Name+" is made")
	return r.apply(ctx, v, writes(v, status, action.DiscardPods{Pods: earlierPods(v)}))
}

// writeVolume creates the PersistentVolume. If there must be none, because the claim is gone or the
// handle is another volume's, it returns the plan that it has applied instead. If the claim is
// deleted right after this check, a Released volume results, which is ended by its policy.
func (r *reconciler) writeVolume(ctx context.Context, v *View) (instead *Plan, err error) {
	claim, err := r.liveClaim(ctx, v)
	if err != nil {
		return nil, err
	}
	if claim == nil || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != v.Name {
		return r.unlessWritten(ctx, v, undo(v, reasonClaimGone, "the claim was deleted while its volume was being created"))
	}
	// By now the handle is in the record. The creation of another volume that returned the same
	// handle finds it there.
	holders, err := r.handles.Holders(ctx, v.Record.Spec.Provisioner.Name, v.Record.Status.Handle, v.Name)
	if err != nil {
		return nil, err
	}
	if len(holders) > 0 {
		return r.unlessWritten(ctx, v, giveWay(v, holders, r.clock.Now()))
	}
	vol, err := newVolume(v.Record)
	if err != nil {
		return nil, err
	}
	if err := r.tie(ctx, vol, v.Record.Status.NodeName); err != nil {
		return nil, err
	}
	if follows(v) {
		if err := r.tieToClaims(ctx, v, vol); err != nil {
			return nil, err
		}
	}
	err = r.client.Create(ctx, vol)
	if apierrors.IsAlreadyExists(err) {
		return nil, r.adoptVolume(ctx, v)
	}
	if kube.IsRefusal(err) {
		return nil, r.unwritten(ctx, v, reasonRefused, fmt.Errorf("the API server rejects PersistentVolume %s: %w", vol.Name, err))
	}
	if err != nil {
		return nil, fmt.Errorf("writing PersistentVolume %s: %w", vol.Name, err)
	}
	v.Volume = vol
	return nil, r.runner.Do(ctx, action.Emit{About: claim, Type: corev1.EventTypeNormal, Reason: eventSucceeded, Doing: "Provision",
		Note: fmt.Sprintf("PersistentVolume %s is created", vol.Name)})
}

// unlessWritten applies a plan that gives the volume up, unless the PersistentVolume was written
// before a crash: then it has been handed over, and stays.
func (r *reconciler) unlessWritten(ctx context.Context, v *View, p Plan) (instead *Plan, err error) {
	vol, err := r.liveVolume(ctx, v)
	if err != nil {
		return nil, err
	}
	if vol != nil && isOf(vol, v.Record) {
		v.Volume = vol
		return nil, nil
	}
	_, err = r.apply(ctx, v, p)
	return &p, err
}

// adoptVolume uses the PersistentVolume that already exists if it belongs to this claim and is not
// being deleted. Otherwise the claim waits until that volume is gone, and an Event says so.
func (r *reconciler) adoptVolume(ctx context.Context, v *View) error {
	live, err := r.liveVolume(ctx, v)
	switch {
	case err != nil:
		return err
	case live == nil:
		return kube.ErrStale
	case live.DeletionTimestamp != nil:
		err = fmt.Errorf("PersistentVolume %s exists and is being deleted; waiting until it is gone", v.Name)
	case !isOf(live, v.Record):
		err = fmt.Errorf("PersistentVolume %s exists and belongs to another claim; delete it to continue", v.Name)
	default:
		v.Volume = live
		return nil
	}
	return r.unwritten(ctx, v, reasonNameTaken, err)
}

// unwritten reports why a created volume has no PersistentVolume, and returns that error. The
// controller retries until the obstacle is gone.
func (r *reconciler) unwritten(ctx context.Context, v *View, reason string, why error) error {
	p, status := Plan{}, v.Record.Status.DeepCopy()
	if sayProvisioned(status, v.Record, reason, why.Error()) {
		p = writes(v, status)
	}
	p.Actions = append(warnClaim(v, reason, why.Error()), p.Actions...)
	if _, err := r.apply(ctx, v, p); err != nil {
		return err
	}
	return why
}
