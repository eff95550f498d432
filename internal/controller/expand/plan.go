package expand

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Events of an expansion, on a PersistentVolumeClaim. The reasons are those of Kubernetes' own
// resizer.
const (
	// eventResizing: the storage is being made larger.
	eventResizing = "Resizing"
	// eventFailed: an attempt failed. Correct the cause in the message; the next attempt follows
	// by itself.
	eventFailed = "VolumeResizeFailed"
	// eventSucceeded: the volume has its new size.
	eventSucceeded = "VolumeResizeSuccessful"
	// eventNodePending: the storage is larger; the node still has to expand the file system. That
	// needs a running pod with the volume.
	eventNodePending = "FileSystemResizeRequired"
)

// Reasons of a volume that cannot be expanded. They are in status.expansion.lastError of a
// PavVolume.
const (
	// reasonNotExpandable: the provisioner cannot expand the volume, or Tarn did not create it.
	// Add spec.volumeExpansion, or request the old size again.
	reasonNotExpandable = "NotExpandable"
	// reasonNotReady: the provisioner is not accepted or is being deleted. Correct the
	// PavProvisioner; the expansion then continues.
	reasonNotReady = "ProvisionerNotReady"
)

// Plan is what to do, in this order. Next is when to reconcile again without an event; zero means
// never.
type Plan struct {
	Actions []action.Action
	Next    time.Time
}

// writeJournal writes status.expansion and capacity of the record. The write fails if the record
// has changed since it was read, even if it would change nothing.
func writeJournal(v *View, status *tarnv1.PavVolumeStatus) action.Action {
	record := v.Record.DeepCopy()
	record.Status = *status
	return action.UpdateStatus{To: record, Present: true}
}

// growVolume sets the capacity of the PersistentVolume.
func growVolume(v *View, bytes int64) action.Action {
	vol := v.Volume.DeepCopy()
	vol.Spec.Capacity[corev1.ResourceStorage] = quantity(bytes)
	return action.Patch{From: v.Volume, To: vol}
}

// discard deletes the record's expansion pods except the named one.
func discard(v *View, keep string) action.Action {
	return action.DiscardPods{Pods: slices.DeleteFunc(slices.Clone(v.Pods), func(pod corev1.Pod) bool { return pod.Name == keep })}
}

// post emits an Event about the claim.
func post(v *View, kind, reason, note string) action.Action {
	return action.Emit{About: v.Claim, Related: v.Volume, Type: kind, Reason: reason, Doing: "Expand", Note: note}
}

// plan decides what to do. The journal says whether the volume is idle, an attempt is running, or
// the next attempt is waiting.
func plan(v *View, now time.Time) Plan {
	switch j := journalOf(v); {
	case v.Record == nil:
		return planForeign(v, now)
	case !made(v.Record):
		return Plan{} // pavvolume handles it
	case j.TargetCapacity == 0:
		return planIdle(v, now)
	case j.NextAttemptTime == nil:
		return planRunning(v, now)
	default:
		return planWaiting(v, now)
	}
}

// due returns the attempt that must begin now or whose pod is missing, and its target size; attempt
// 0 if there is none.
func due(v *View, now time.Time) (attempt int32, target int64) {
	j, wanted := journalOf(v), wantedOf(v.Claim)
	switch {
	case !growable(v):
		return 0, 0
	case j.TargetCapacity != 0 && j.NextAttemptTime == nil:
		if v.Observed.State == steppod.PodAbsent {
			return j.Attempts, j.TargetCapacity
		}
		return 0, 0
	case wanted <= sizeOf(v), statusOf(v.Claim) == corev1.PersistentVolumeClaimNodeResizeInProgress:
		return 0, 0
	case j.TargetCapacity == 0, j.TargetCapacity != wanted, !now.Before(j.NextAttemptTime.Time), mended(v):
		return j.Attempts + 1, wanted
	}
	return 0, 0
}

// mended says that the provisioner may expand volumes and has changed since the last failed
// attempt. A change that is not judged yet does not count.
func mended(v *View) bool {
	last := journalOf(v).LastError
	if last == nil || obstacle(v) != nil {
		return false
	}
	if last.Reason == reasonNotExpandable || last.Reason == reasonNotReady {
		return true
	}
	judged := meta.FindStatusCondition(v.Provisioner.Status.Conditions, pavv1.ConditionAccepted)
	return last.ProvisionerGeneration != 0 && last.ProvisionerGeneration != v.Provisioner.Generation &&
		judged.ObservedGeneration == v.Provisioner.Generation
}

// obstacle returns why the provisioner cannot expand the volume, nil if it can.
func obstacle(v *View) *steppod.StepError {
	no := func(reason, format string, args ...any) *steppod.StepError {
		return &steppod.StepError{Step: tarnv1.StepExpansion, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	p := v.Provisioner
	switch {
	case p == nil, p.UID != v.Record.Spec.Provisioner.UID:
		return no(reasonNotExpandable, "PavProvisioner %q, which created the volume, is gone, and nothing else can expand it; create the provisioner again", v.Record.Spec.Provisioner.Name)
	case p.DeletionTimestamp != nil:
		return no(reasonNotReady, "PavProvisioner %q is being deleted and expands no volumes", p.Name)
	case !accepted(p):
		return no(reasonNotReady, "PavProvisioner %q is not accepted; correct it", p.Name)
	case p.Spec.VolumeExpansion == nil:
		return no(reasonNotExpandable, "PavProvisioner %q has no spec.volumeExpansion; add it, or remove allowVolumeExpansion from the StorageClass", p.Name)
	}
	return nil
}

func accepted(p *pavv1.PavProvisioner) bool {
	return meta.IsStatusConditionTrue(p.Status.Conditions, pavv1.ConditionAccepted)
}

// made says that the volume was handed over and is not being deleted.
func made(record *tarnv1.PavVolume) bool {
	return record.Status.Phase == tarnv1.VolumeCreated && record.DeletionTimestamp == nil &&
		meta.IsStatusConditionTrue(record.Status.Conditions, tarnv1.ConditionProvisioned)
}

// growable says that the volume has a claim that may request more.
func growable(v *View) bool {
	return v.Claim != nil && v.Claim.DeletionTimestamp == nil && v.Claim.Status.Phase == corev1.ClaimBound && capacityOf(v.Claim) > 0
}

// planForeign rejects the expansion of a volume that Tarn did not create, until it was expanded by
// hand.
func planForeign(v *View, now time.Time) Plan {
	if !growable(v) || wantedOf(v.Claim) <= sizeOf(v) {
		return Plan{Actions: settle(v, now)}
	}
	return Plan{Actions: reject(v, &steppod.StepError{Step: tarnv1.StepExpansion, Reason: reasonNotExpandable, Message: fmt.Sprintf(
		"PersistentVolume %s was not created by Tarn, so PavProvisioner %q cannot expand it; expand its storage by hand and set its spec.capacity", v.Volume.Name, v.Provisioner.Name)}, now)}
}

// planIdle begins the expansion that the claim requests, or updates the claim's status to the
// volume's size.
func planIdle(v *View, now time.Time) Plan {
	var actions []action.Action
	if len(v.Pods) > 0 {
		actions = append(actions, discard(v, ""))
	}
	if size := sizeOf(v); size > v.Record.Status.Capacity { // the volume was written before a crash
		actions = append(actions, writeJournal(v, idle(v, size)))
	}
	if attempt, target := due(v, now); attempt > 0 {
		return begin(v, attempt, target, now)
	}
	return Plan{Actions: append(actions, settle(v, now)...)}
}

func planRunning(v *View, now time.Time) Plan {
	j := journalOf(v)
	switch o := v.Observed.After(waitedFor(v.Claim)); o.State {
	case steppod.PodAbsent:
		if !growable(v) {
			return Plan{Actions: []action.Action{writeJournal(v, idle(v, sizeOf(v)))}}
		}
		return begin(v, j.Attempts, j.TargetCapacity, now)
	case steppod.PodSucceeded:
		bytes, err := steppod.ExpansionResult(v.Record, j.TargetCapacity, o.Result)
		if err != nil {
			return failed(v, j.Attempts, j.TargetCapacity, steppod.AsStepError(err), now)
		}
		return done(v, bytes, now)
	case steppod.PodFailed, steppod.PodForeign:
		message := o.Message
		if o.Reason == steppod.ReasonPodFailed {
			message = "Expansion pod failed: " + message
		}
		return failed(v, j.Attempts, j.TargetCapacity, &steppod.StepError{Step: tarnv1.StepExpansion, Reason: o.Reason, Message: message}, now)
	default:
		p := Plan{Next: o.CheckAt}
		if growable(v) {
			p.Actions = writeClaim(v, waiting(v.Claim, o, now))
			if doing, note := o.WaitEvent(v.Current); note != "" && len(p.Actions) > 0 {
				p.Actions = append(p.Actions, action.Emit{About: v.Claim, Related: v.Volume, Type: corev1.EventTypeWarning, Reason: steppod.EventPodWaiting, Doing: doing, Note: note})
			}
		}
		return p
	}
}

// planWaiting retries when the backoff is over, and at once if the claim requests another size.
// Users recover that way from an expansion that cannot succeed.
func planWaiting(v *View, now time.Time) Plan {
	if !growable(v) || wantedOf(v.Claim) <= sizeOf(v) {
		return Plan{Actions: append([]action.Action{writeJournal(v, idle(v, sizeOf(v))), discard(v, "")}, settle(v, now)...)}
	}
	if attempt, target := due(v, now); attempt > 0 {
		return begin(v, attempt, target, now)
	}
	return Plan{Next: journalOf(v).NextAttemptTime.Time}
}

// begin writes the intent, then grows the volume's own claims. When they have grown, it creates the
// pod. It writes the intent even if it is recorded already: if the cache was behind, that write
// fails. So no pod is created for an expansion that is already done.
func begin(v *View, attempt int32, target int64, now time.Time) Plan {
	if v.Unfit != nil {
		return failed(v, attempt, target, v.Unfit, now)
	}
	if v.Prepared.Pod == nil && len(v.Behind) == 0 {
		return done(v, target, now)
	}
	if len(v.Behind) > 0 && growable(v) && wantedOf(v.Claim) < target { // the user gave it up: no pod works on it
		return Plan{Actions: []action.Action{writeJournal(v, idle(v, sizeOf(v)))}}
	}
	if j := journalOf(v); len(v.Behind) > 0 && j.TargetCapacity == target && j.Attempts == attempt && j.NextAttemptTime == nil {
		return Plan{Actions: growClaims(v, now), Next: now.Add(backingLook)}
	}
	status := v.Record.Status.DeepCopy()
	again := status.Expansion != nil && status.Expansion.TargetCapacity == target
	if !again {
		status.Expansion = &tarnv1.PavVolumeExpansion{TargetCapacity: target}
	}
	status.Expansion.Attempts, status.Expansion.NextAttemptTime = attempt, nil
	actions := append([]action.Action{writeJournal(v, status)}, writeClaim(v, started(v.Claim, v.Provisioner.Name, target, again, now))...)
	if !again {
		actions = append(actions, post(v, corev1.EventTypeNormal, eventResizing, fmt.Sprintf(
			"PavProvisioner %q expands volume %s to %s", v.Provisioner.Name, v.Volume.Name, volume.Size(target))))
	}
	if len(v.Behind) > 0 {
		return Plan{Actions: append(append(actions, discard(v, "")), growRequests(v)...), Next: now.Add(backingLook)}
	}
	return Plan{Actions: append(actions, action.StartPod{Pod: v.Prepared.Pod}, discard(v, v.Prepared.Pod.Name))}
}

// done records that a volume has grown. It writes the PersistentVolume first, which the kubelet
// reads, then the record, and last the claim, which its owner reads.
func done(v *View, bytes int64, now time.Time) Plan {
	var actions []action.Action
	if quantityOf(v.Volume.Spec.Capacity) < bytes {
		actions = append(actions, growVolume(v, bytes))
	}
	actions = append(actions, writeJournal(v, idle(v, bytes)))
	if growable(v) {
		actions = append(actions, finish(v, bytes, now)...)
	}
	return Plan{Actions: append(actions, discard(v, ""))}
}

// idle is the record's status when no expansion is in progress. The count of attempts continues, as
// it names their pods.
func idle(v *View, bytes int64) *tarnv1.PavVolumeStatus {
	status := v.Record.Status.DeepCopy()
	status.Capacity = max(status.Capacity, bytes)
	status.Expansion = &tarnv1.PavVolumeExpansion{Attempts: journalOf(v).Attempts}
	return status
}

// failed records a failure. The next attempt is due after a pause that doubles each time. The
// failed pod stays until then, so that its log can be read.
func failed(v *View, attempt int32, target int64, err *steppod.StepError, now time.Time) Plan {
	status := v.Record.Status.DeepCopy()
	failures := int32(1)
	if j := status.Expansion; j != nil && j.TargetCapacity == target {
		failures += j.Failures
	}
	next := steppod.RetryAt(v.Record, failures, now)
	status.Expansion = &tarnv1.PavVolumeExpansion{
		TargetCapacity: target, Attempts: attempt, Failures: failures, NextAttemptTime: next,
		LastError: err.Recorded(v.Provisioner, now),
	}
	actions := []action.Action{writeJournal(v, status)}
	if growable(v) {
		actions = append(actions, fail(v, target, err, now)...)
	}
	return Plan{Actions: actions, Next: next.Time}
}

// fail reports a failed attempt in the claim's status and an Event.
func fail(v *View, target int64, err *steppod.StepError, now time.Time) []action.Action {
	claim := started(v.Claim, v.Volume.Spec.CSI.Driver, target, true, now)
	return append(writeClaim(v, rejected(claim, err, now)), post(v, corev1.EventTypeWarning, eventFailed, err.Message))
}

// reject does the same for a volume without a journal, once.
func reject(v *View, err *steppod.StepError, now time.Time) []action.Action {
	write := writeClaim(v, rejected(v.Claim, err, now))
	if write == nil {
		return nil
	}
	return append(write, post(v, corev1.EventTypeWarning, eventFailed, err.Message))
}

// settle updates the status of a claim whose volume is large enough.
func settle(v *View, now time.Time) []action.Action {
	if !growable(v) || v.Provisioner == nil || wantedOf(v.Claim) > sizeOf(v) {
		return nil
	}
	onNodes := steppod.ExpandsOnNodes(v.Provisioner)
	switch wanted, allocated := wantedOf(v.Claim), allocatedOf(v.Claim); statusOf(v.Claim) {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if !onNodes { // not any more: the kubelet would wait for ever
			return finish(v, allocated, now)
		}
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		if !onNodes || wanted != allocated { // the user requests less than the size that failed on the node
			return finish(v, wanted, now)
		}
	case corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible:
		return finish(v, sizeOf(v), now)
	case "":
		if wanted > capacityOf(v.Claim) {
			return finish(v, wanted, now)
		}
	}
	return nil
}

// finish ends the controller's part of a resize. The claim then waits for the kubelet to reach the
// size, or gets the volume's size.
func finish(v *View, bytes int64, now time.Time) []action.Action {
	if steppod.ExpandsOnNodes(v.Provisioner) {
		return append(writeClaim(v, pending(v.Claim, bytes, now)), post(v, corev1.EventTypeNormal, eventNodePending, fmt.Sprintf(
			"volume %s is expanded; the nodes that use it have not reached %s yet", v.Volume.Name, volume.Size(bytes))))
	}
	bytes = max(bytes, sizeOf(v))
	return append(writeClaim(v, finished(v.Claim, bytes)), post(v, corev1.EventTypeNormal, eventSucceeded, fmt.Sprintf(
		"volume %s has %s", v.Volume.Name, volume.Size(bytes))))
}

// writeClaim returns the write of a claim's status and annotations, none if nothing changes.
func writeClaim(v *View, claim *corev1.PersistentVolumeClaim) []action.Action {
	if equality.Semantic.DeepEqual(v.Claim.Status, claim.Status) && equality.Semantic.DeepEqual(v.Claim.Annotations, claim.Annotations) {
		return nil
	}
	return []action.Action{action.PatchStatus{From: v.Claim, To: claim, Present: true}}
}
