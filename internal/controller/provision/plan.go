package provision

import (
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of condition Provisioned of a PavVolume.
const (
	// reasonProvisioned: the PersistentVolume exists.
	reasonProvisioned = "Provisioned"
	// reasonInProgress: the volume is being created.
	reasonInProgress = "InProgress"
	// reasonNotReady: the PavProvisioner is not accepted, is being deleted, or does not exist.
	// Correct it as the message says.
	reasonNotReady = "ProvisionerNotReady"
	// reasonClaimGone: the claim was deleted during the creation, which is undone.
	reasonClaimGone = "ClaimGone"
	// reasonPodWaits: the pod of the step cannot start. Correct the cause in the message.
	reasonPodWaits = "PodWaiting"
	// reasonNameTaken: another PersistentVolume has the name. Delete it; the creation then
	// continues.
	reasonNameTaken = "VolumeNameTaken"
	// reasonRefused: the API server rejects the PersistentVolume. Correct the cause in the
	// message.
	reasonRefused = "VolumeRefused"
	// reasonNodeRefused: the selected node is not in allowedTopologies of the class. The scheduler
	// selects again.
	reasonNodeRefused = "NodeNotAllowed"
)

// Events of creating a volume, on a PersistentVolumeClaim.
const (
	// eventStarted: the volume is being created.
	eventStarted = "Provisioning"
	// eventFailed: an attempt failed. Correct the cause in the message; the next attempt follows
	// by itself.
	eventFailed = "ProvisioningFailed"
	// eventSucceeded: the PersistentVolume exists.
	eventSucceeded = "ProvisioningSucceeded"
)

// Act is what a reconcile does. It is a closed set.
type Act string

// The acts. Each is idempotent and leaves objects from which the next act follows.
const (
	// ActNone: wait for an event, or for Plan.Next.
	ActNone Act = "None"
	// ActRecord: write the PavVolume.
	ActRecord Act = "Record"
	// ActReschedule: the selected node failed: let the scheduler select again.
	ActReschedule Act = "Reschedule"
	// ActBegin: begin an attempt: evaluate the templates, check the claim, start the pod.
	ActBegin Act = "Begin"
	// ActRevalidate: start the missing validation pod.
	ActRevalidate Act = "Revalidate"
	// ActCreate: the validation has succeeded: start the creation.
	ActCreate Act = "Create"
	// ActRecreate: start the missing creation pod.
	ActRecreate Act = "Recreate"
	// ActStatus: write Plan.Status.
	ActStatus Act = "Status"
	// ActWithdraw: remove a pod that got no node, the only one of its attempt, then write
	// Plan.Status.
	ActWithdraw Act = "Withdraw"
	// ActVolume: write the PersistentVolume.
	ActVolume Act = "Volume"
	// ActSettle: the PersistentVolume exists: record that, and remove the pod.
	ActSettle Act = "Settle"
	// ActDrop: remove the record: nothing was created, or nothing is left.
	ActDrop Act = "Drop"
)

// Plan is what to do about one volume.
type Plan struct {
	Act Act
	// Status is what ActStatus writes.
	Status *tarnv1.PavVolumeStatus
	// Warning is the text of an Event about the claim; empty for none. Cause names its cause, and
	// becomes the Event's action. Events that differ only in their text are merged under the first
	// text, so each cause has its own action.
	Warning, Cause string
	// WaitAction and WaitNote are the Event that says why the pod cannot start; empty for none. See
	// steppod.Observation.WaitEvent.
	WaitAction, WaitNote string
	// Next is when to reconcile again without an event; zero means never.
	Next time.Time
}

// decide returns the plan for a View.
func decide(v *View, now time.Time) Plan {
	if v.Record == nil {
		return decideNew(v)
	}
	if steppod.Forgotten(v.Record) {
		return Plan{Act: ActNone} // reclaim deletes it in any phase
	}
	switch v.Record.Status.Phase {
	case "", tarnv1.VolumePending:
		return decidePending(v, now)
	case tarnv1.VolumeValidating:
		return decideValidating(v, now)
	case tarnv1.VolumeCreating:
		return decideCreating(v, now)
	case tarnv1.VolumeCreated:
		return decideCreated(v)
	case tarnv1.VolumeDisputed:
		return decideDisputed(v)
	default: // reclaim handles Undoing and Deleting
		return Plan{Act: ActNone}
	}
}

// decideNew decides whether a claim without a record gets one.
func decideNew(v *View) Plan {
	none := Plan{Act: ActNone}
	c := v.Claim
	if c == nil || c.Spec.VolumeName != "" || volume.StateOfClaim(c) == volume.ClaimCompleted || c.DeletionTimestamp != nil || v.Volume != nil {
		return none
	}
	name := provisionerName(c)
	if !mayBeOurs(name) || v.Provisioner == nil && v.DriverKnown {
		return none
	}
	if volume.ForPopulator(c) {
		return none // the populator creates a volume for its own claim and gives it to this one
	}
	if cause, why := unusable(v.Provisioner, name); cause != "" {
		return Plan{Act: ActNone, Warning: why, Cause: cause}
	}
	if v.Class == nil || v.Class.Provisioner != name {
		return none // the binder reports a missing class; its creation enqueues the claim
	}
	if v.Class.VolumeBindingMode != nil && *v.Class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && c.Annotations[annSelectedNode] == "" {
		return none
	}
	if volume.HasSource(c) {
		return Plan{Act: ActNone, Cause: "DataSource", Warning: fmt.Sprintf("PavProvisioner %q cannot create a volume from a data source; create the claim again without spec.dataSource", name)}
	}
	if c.Spec.Selector != nil {
		return Plan{Act: ActNone, Cause: "Selector", Warning: fmt.Sprintf("PavProvisioner %q cannot create a volume for a selector; create the claim again without spec.selector", name)}
	}
	if class := volume.AttributesClassOf(c); class != "" { // no binder would bind a volume without that class to it
		return Plan{Act: ActNone, Cause: "AttributesClass", Warning: fmt.Sprintf("PavProvisioner %q does not support VolumeAttributesClass; create the claim again without spec.volumeAttributesClassName %q", name, class)}
	}
	if limit, beyond := volume.BeyondLimit(c); beyond {
		request := volume.Request(c)
		return Plan{Act: ActNone, Cause: "Limit", Warning: fmt.Sprintf("the claim's spec.resources.requests.storage is %s, more than its spec.resources.limits.storage, %s; "+
			"create the claim again with a limit of at least %s, or without a limit", request.String(), limit.String(), request.String())}
	}
	if why := steppod.UnreadSecret(v.Provisioner, v.Class); why != "" {
		return Plan{Act: ActNone, Cause: "Secret", Warning: why}
	}
	return Plan{Act: ActRecord}
}

// unusable says why a provisioner must not create new volumes: a keyword, and a text for users.
// Both are empty if it may. A provisioner that was just created or changed has not been judged yet:
// that is a keyword without text, as users need not know.
func unusable(p *pavv1.PavProvisioner, name string) (cause, why string) {
	switch {
	case p == nil:
		return "NoProvisioner", fmt.Sprintf("there is no PavProvisioner %q; create it, or correct the provisioner of the StorageClass", name)
	case p.DeletionTimestamp != nil:
		return "ProvisionerDeleted", fmt.Sprintf("PavProvisioner %q is under deletion and creates no new volumes", name)
	case !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic):
		return "NotDynamic", fmt.Sprintf("PavProvisioner %q does not have Dynamic in spec.provisioningModes", name)
	}
	accepted := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
	if accepted == nil || accepted.ObservedGeneration != p.Generation {
		return "NotJudged", ""
	}
	if accepted.Status != metav1.ConditionTrue {
		return fmt.Sprintf("NotAccepted%d", p.Generation), fmt.Sprintf("PavProvisioner %q is not accepted: %s", name, accepted.Message)
	}
	return "", ""
}

func decidePending(v *View, now time.Time) Plan {
	if !needed(v) {
		return Plan{Act: ActDrop}
	}
	p := v.Provisioner
	if p == nil || p.UID != v.Record.Spec.Provisioner.UID || p.DeletionTimestamp != nil {
		return Plan{Act: ActDrop} // nothing was created; if the provisioner returns, it gets a new record
	}
	if class, err := classOf(v.Record); v.Class != nil && err == nil && v.Class.UID != class.UID {
		return Plan{Act: ActDrop} // a user corrects a class by creating it again; the record has the old parameters
	}
	if cause, why := unusable(p, p.Name); cause != "" {
		status := v.Record.Status.DeepCopy()
		if why == "" || !say(status, v.Record, reasonNotReady, why) {
			return Plan{Act: ActNone}
		}
		return Plan{Act: ActStatus, Status: status, Warning: why, Cause: cause}
	}
	if followsNode(v) && v.Record.Status.NodeName != "" {
		return Plan{Act: ActReschedule}
	}
	if at := v.Record.Status.NextAttemptTime; at != nil && now.Before(at.Time) && !mended(v) && !steppod.Retried(v.Record, tarnv1.StepCreation, v.Record.Status.Attempts) {
		return Plan{Act: ActNone, Next: at.Time}
	}
	if followsNode(v) && v.Claim.Annotations[annSelectedNode] == "" {
		return Plan{Act: ActNone} // the scheduler's choice is an event of the claim
	}
	return Plan{Act: ActBegin}
}

// mended says whether the provisioner changed since the last failure.
func mended(v *View) bool {
	last := v.Record.Status.LastError
	return last != nil && last.ProvisionerGeneration != 0 && last.ProvisionerGeneration != v.Provisioner.Generation
}

// followsNode says whether the volume is created on the node that the scheduler selects.
func followsNode(v *View) bool {
	return v.Record.Spec.WaitsForNode && v.Provisioner != nil && v.Provisioner.Spec.Topology == pavv1.TopologyNode
}

// wanted says whether the claim exists and still waits for this volume.
func wanted(v *View) bool {
	return v.Claim != nil && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.VolumeName)
}

// needed says whether the claim still waits for this volume and the record is not being deleted. A
// user deletes the record to get a new one, with the current class.
func needed(v *View) bool { return wanted(v) && v.Record.DeletionTimestamp == nil }

func decideValidating(v *View, now time.Time) Plan {
	if !needed(v) {
		return Plan{Act: ActDrop} // a validation leaves nothing to undo
	}
	switch o := v.Observed; o.State {
	case steppod.PodAbsent:
		if gone := provisionerGone(v); gone != nil {
			return fail(v, gone, tarnv1.VolumePending, now)
		}
		return Plan{Act: ActRevalidate}
	case steppod.PodSucceeded:
		if gone := provisionerGone(v); gone != nil {
			return fail(v, gone, tarnv1.VolumePending, now)
		}
		return Plan{Act: ActCreate}
	case steppod.PodFailed, steppod.PodForeign:
		return fail(v, podFailure(tarnv1.StepValidation, v), tarnv1.VolumePending, now)
	default:
		return await(v)
	}
}

func decideCreating(v *View, now time.Time) Plan {
	switch o := v.Observed; o.State {
	case steppod.PodAbsent:
		if !wanted(v) {
			return undo(v, reasonClaimGone, "the claim was deleted while its volume was being created")
		}
		if gone := provisionerGone(v); gone != nil {
			return fail(v, gone, tarnv1.VolumeUndoing, now)
		}
		return Plan{Act: ActRecreate}
	case steppod.PodSucceeded:
		status, err := created(v, o.Inputs, o.Result)
		if err != nil {
			return fail(v, steppod.AsStepError(err), tarnv1.VolumeUndoing, now)
		}
		return Plan{Act: ActStatus, Status: status}
	case steppod.PodFailed, steppod.PodForeign:
		if neverRan(v) {
			p := fail(v, podFailure(tarnv1.StepCreation, v), tarnv1.VolumePending, now)
			if hasNoNode(v) { // else it has ended, and stays so that its author can read its log
				p.Act = ActWithdraw
			}
			return p
		}
		if until := neverRanUntil(v, now); !until.IsZero() {
			return Plan{Act: ActNone, Next: until}
		}
		return fail(v, podFailure(tarnv1.StepCreation, v), tarnv1.VolumeUndoing, now)
	default:
		switch {
		case !needed(v) && neverRan(v):
			return withdraw(v)
		case !wanted(v) && hasNoNode(v):
			return undo(v, reasonClaimGone, "the claim was deleted while its creation pod, which was started again, waited for a node")
		}
		return await(v)
	}
}

func decideCreated(v *View) Plan {
	handed := meta.IsStatusConditionTrue(v.Record.Status.Conditions, tarnv1.ConditionProvisioned)
	switch {
	case handed && v.Pod == nil:
		return Plan{Act: ActNone} // from here on reclaim acts on the PersistentVolume
	case handed, v.Volume != nil && isOf(v.Volume, v.Record):
		return Plan{Act: ActSettle}
	default:
		return Plan{Act: ActVolume}
	}
}

func provisionerGone(v *View) *steppod.StepError {
	if v.Provisioner != nil && v.Provisioner.UID == v.Record.Spec.Provisioner.UID {
		return nil
	}
	return &steppod.StepError{Step: stepOf(v.Record), Reason: reasonNotReady, Message: fmt.Sprintf(
		"PavProvisioner %q was removed while it created this volume", v.Record.Spec.Provisioner.Name)}
}

// created is the status once handle and capacity are known. It has the node too if the volume is
// tied to one.
func created(v *View, inputs tarnv1.PodInputs, result *tarnv1.PodResult) (*tarnv1.PavVolumeStatus, error) {
	record := v.Record
	handle, bytes, err := steppod.CreationResult(record, inputs, result)
	if err != nil {
		return nil, err
	}
	status := record.Status.DeepCopy()
	if tied := v.Provisioner != nil && v.Provisioner.Spec.Topology == pavv1.TopologyNode; tied && status.NodeName == "" {
		if v.Pod == nil {
			return nil, &steppod.StepError{Step: tarnv1.StepCreation, Reason: steppod.ReasonInvalid, Message: "spec.topology is Node, but nothing says " +
				"which node: give spec.volumeCreation a podTemplate, or the StorageClass volumeBindingMode WaitForFirstConsumer"}
		}
		status.NodeName = v.Pod.Spec.NodeName
	}
	status.Phase, status.Handle, status.Capacity = tarnv1.VolumeCreated, handle, bytes
	status.LastError, status.NextAttemptTime = nil, nil
	say(status, record, reasonInProgress, "the volume is created; its PersistentVolume is being written")
	return status, nil
}

// begun is the status written before the pod of a step starts, so that the intent is recorded
// before the side effect. It includes the handle that a creation will use.
func begun(record *tarnv1.PavVolume, phase tarnv1.VolumePhase, attempt int32, prepared *steppod.Prepared) *tarnv1.PavVolumeStatus {
	status := record.Status.DeepCopy()
	status.Phase, status.Attempts, status.NextAttemptTime = phase, attempt, nil
	status.PodNamespace, status.Handle = prepared.Pod.Namespace, prepared.Inputs.Handle
	say(status, record, reasonInProgress, underWay(attempt, phase))
	return status
}

func underWay(attempt int32, phase tarnv1.VolumePhase) string {
	return fmt.Sprintf("attempt %d: %s", attempt, phase)
}

// fail records a failure. The phase becomes Pending if nothing can have been created, else Undoing.
// After Undoing, reclaim sets the time of the next attempt, because the backoff begins when
// everything is undone.
func fail(v *View, err *steppod.StepError, into tarnv1.VolumePhase, now time.Time) Plan {
	status := failed(v, err, into, v.Record.Status.Attempts, now)
	return Plan{Act: ActStatus, Status: status, Warning: err.Message, Cause: attemptCause(v.Record.Status.Attempts)}
}

// attemptCause is the cause of an attempt's failure, so that each attempt has its own Event.
func attemptCause(attempt int32) string { return fmt.Sprintf("Attempt%d", attempt) }

func failed(v *View, err *steppod.StepError, into tarnv1.VolumePhase, attempt int32, now time.Time) *tarnv1.PavVolumeStatus {
	record := v.Record
	status := record.Status.DeepCopy()
	status.Phase, status.Attempts, status.NextAttemptTime = into, attempt, nil
	if into == tarnv1.VolumeUndoing {
		handOver(status, v)
	} else {
		status.Handle = ""
		status.NextAttemptTime = steppod.RetryAt(record, attempt, now)
	}
	status.LastError = err.Recorded(v.Provisioner, now)
	say(status, record, err.Reason, err.Message)
	return status
}

// undo hands to reclaim what a creation that did not fail may have created.
func undo(v *View, reason, why string) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase = tarnv1.VolumeUndoing
	handOver(status, v)
	say(status, v.Record, reason, why)
	return Plan{Act: ActStatus, Status: status}
}

// handOver prepares a status for reclaim: it begins a new deletion. It records the handle that the
// creation pod was given or returned, and the pod's node. So the deletion acts on the same volume
// even if the creation did not finish.
func handOver(status *tarnv1.PavVolumeStatus, v *View) {
	o := v.Observed
	status.DeletionAttempts++
	if status.Handle == "" {
		status.Handle = o.Inputs.Handle
	}
	if o.Result != nil && o.Result.Handle != nil && *o.Result.Handle != "" {
		status.Handle = *o.Result.Handle
	}
	if v.Pod != nil && v.Pod.Spec.NodeName != "" && v.Provisioner != nil && v.Provisioner.Spec.Topology == pavv1.TopologyNode {
		status.NodeName = v.Pod.Spec.NodeName
	}
}

// say sets condition Provisioned: True for reasonProvisioned, else False. It returns whether that
// changed the status.
func say(status *tarnv1.PavVolumeStatus, record *tarnv1.PavVolume, reason, message string) bool {
	value := metav1.ConditionFalse
	if reason == reasonProvisioned {
		value = metav1.ConditionTrue
	}
	return meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: tarnv1.ConditionProvisioned, Status: value, Reason: reason, Message: kube.Message(message), ObservedGeneration: record.Generation,
	})
}

// stepOf is the step of the pod that belongs to a record's phase, empty for none.
func stepOf(record *tarnv1.PavVolume) tarnv1.Step {
	switch record.Status.Phase {
	case tarnv1.VolumeValidating:
		return tarnv1.StepValidation
	case tarnv1.VolumeCreating, tarnv1.VolumeCreated:
		return tarnv1.StepCreation
	}
	return ""
}
