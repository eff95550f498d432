package pavvolume

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
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
	// reasonClaimGone: the claim was deleted during the creation, or its class was created again. The
	// creation is undone.
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
	// eventUnknownParameter: no template of the provisioner reads a parameter of the class, so the
	// volume is created without it. If the name is misspelt, correct it and create the class again.
	eventUnknownParameter = "UnknownParameter"
)

// planClaim decides whether a claim without a record gets one.
func planClaim(v *View) Plan {
	c := v.Claim
	if c == nil || c.Spec.VolumeName != "" || volume.StateOfClaim(c) == volume.ClaimCompleted || c.DeletionTimestamp != nil {
		return Plan{}
	}
	name := provisionerName(c)
	if !mayBeOurs(name) || v.Provisioner == nil && v.DriverKnown {
		return Plan{}
	}
	if volume.ForPopulator(c) {
		return Plan{} // the populator creates a volume for its own claim and gives it to this one
	}
	if cause, why := unusable(v.Provisioner, name); cause != "" {
		return Plan{Actions: warnClaim(v, cause, why)}
	}
	if v.Class == nil || v.Class.Provisioner != name {
		return Plan{} // the binder reports a missing class; its creation enqueues the claim
	}
	if v.Class.VolumeBindingMode != nil && *v.Class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && c.Annotations[volume.AnnSelectedNode] == "" {
		return Plan{}
	}
	if cause, why := unservable(v); cause != "" {
		return Plan{Actions: warnClaim(v, cause, why)}
	}
	return Plan{Act: ActRecord}
}

// unservable says why no PavProvisioner can serve a claim: a keyword, and a text for users.
func unservable(v *View) (cause, why string) {
	name := v.Provisioner.Name
	if why := unsourced(v); why != "" {
		return "DataSource", why
	}
	if v.Claim.Spec.Selector != nil {
		return "Selector", fmt.Sprintf("PavProvisioner %q cannot create a volume for a selector; create the claim again without spec.selector", name)
	}
	if class := volume.AttributesClassOf(v.Claim); class != "" { // no binder would bind a volume without that class to it
		return "AttributesClass", fmt.Sprintf("PavProvisioner %q does not support VolumeAttributesClass; create the claim again without spec.volumeAttributesClassName %q", name, class)
	}
	if limit, beyond := volume.BeyondLimit(v.Claim); beyond {
		request := volume.Request(v.Claim)
		return "Limit", fmt.Sprintf("the claim's spec.resources.requests.storage is %s, more than its spec.resources.limits.storage, %s; "+
			"create the claim again with a limit of at least %s, or without a limit", request.String(), limit.String(), request.String())
	}
	if why := steppod.UnreadSecret(v.Provisioner, v.Class); why != "" {
		return "Secret", why
	}
	if v.Claim.Labels[tarnv1.LabelPoolUID] != "" && steppod.SecretPerClaim(v.Class.Parameters) {
		return "Secret", fmt.Sprintf("StorageClass %q gives each claim a Secret of its own, so a PersistentVolumeSet cannot make its volumes ahead; use a class whose parameter %q and namespace have no variable ${pvc...}",
			v.Class.Name, steppod.SecretNameParameter)
	}
	if _, err := steppod.SecretOf(v.Class, v.Name, v.Claim); err != nil {
		return "Secret", err.Error()
	}
	return "", ""
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

func planPending(v *View, now time.Time) Plan {
	if !needed(v) {
		return drop(v)
	}
	if len(v.Record.Status.Claims) > 0 { // of an attempt that is undone
		return Plan{Act: ActEndClaims}
	}
	p := v.Provisioner
	if p == nil || p.UID != v.Record.Spec.Provisioner.UID || p.DeletionTimestamp != nil {
		return drop(v) // nothing was created; if the provisioner returns, it gets a new record
	}
	if reclassed(v) || lostSource(v) != "" {
		return drop(v) // nothing was created; the claim is checked anew
	}
	if cause, why := unusable(p, p.Name); cause != "" {
		status := v.Record.Status.DeepCopy()
		if why == "" || !sayProvisioned(status, v.Record, reasonNotReady, why) {
			return Plan{}
		}
		return writes(v, status, warnClaim(v, cause, why)...)
	}
	if followsNode(v) && v.Record.Status.NodeName != "" {
		return Plan{Act: ActReschedule}
	}
	if at := v.Record.Status.NextAttemptTime; at != nil && now.Before(at.Time) && !mended(v) && !steppod.Retried(v.Record, tarnv1.StepCreation, v.Record.Status.Attempts) {
		return Plan{Next: at.Time}
	}
	if followsNode(v) && v.Claim.Annotations[volume.AnnSelectedNode] == "" {
		return Plan{} // the scheduler's choice is an event of the claim
	}
	return Plan{Act: ActBegin}
}

// followsNode says whether the volume is created on the node that the scheduler selects.
func followsNode(v *View) bool {
	return v.Record.Spec.WaitsForNode && (tied(v) || follows(v)) && !followsSource(v.Record)
}

// wanted says whether the claim exists and still waits for this volume.
func wanted(v *View) bool {
	return v.Claim != nil && (v.Claim.Spec.VolumeName == "" || v.Claim.Spec.VolumeName == v.Name)
}

// needed says whether the claim still waits for this volume and the record is not being deleted. A
// user deletes the record to get a new one, with the current class.
func needed(v *View) bool { return wanted(v) && v.Record.DeletionTimestamp == nil }

// reclassed says whether the class was created again since the record was written. A user corrects a
// class like that, and the record has the old parameters.
func reclassed(v *View) bool {
	class, err := classOf(v.Record)
	return v.Class != nil && err == nil && v.Class.UID != class.UID
}

// drop removes a record without storage, its claims and its pods.
func drop(v *View) Plan {
	if len(v.Record.Status.Claims) > 0 {
		return Plan{Act: ActEndClaims}
	}
	return Plan{Actions: []action.Action{
		action.Confirm{Object: v.Record}, action.DiscardPods{Pods: v.Pods},
		action.RemoveFinalizer{Object: v.Record, Name: tarnv1.FinalizerRecord}, action.Delete{Object: v.Record, Unchanged: true},
	}}
}

func planValidating(v *View, now time.Time) Plan {
	if !needed(v) {
		return drop(v) // a validation leaves nothing to undo
	}
	switch v.Observed.State {
	case steppod.PodAbsent, steppod.PodSucceeded:
		if gone := provisionerGone(v); gone != nil {
			return failed(v, gone, tarnv1.VolumePending, v.Record.Status.Attempts, now)
		}
		if v.Observed.State == steppod.PodAbsent {
			return Plan{Act: ActRestart}
		}
		return Plan{Act: ActCreate}
	case steppod.PodFailed, steppod.PodForeign:
		return failed(v, podFailure(v), tarnv1.VolumePending, v.Record.Status.Attempts, now)
	}
	return await(v)
}

func planCreating(v *View, now time.Time) Plan {
	attempt := v.Record.Status.Attempts
	switch o := v.Observed; o.State {
	case steppod.PodAbsent:
		if !wanted(v) {
			return undo(v, reasonClaimGone, "the claim was deleted while its volume was being created")
		}
		if gone := provisionerGone(v); gone != nil {
			return failed(v, gone, tarnv1.VolumeUndoing, attempt, now)
		}
		return Plan{Act: ActRestart}
	case steppod.PodSucceeded:
		status, err := created(v, v.Pod, o.Inputs, o.Result)
		if err != nil {
			return failed(v, steppod.AsStepError(err), tarnv1.VolumeUndoing, attempt, now)
		}
		return writes(v, status)
	case steppod.PodFailed, steppod.PodForeign:
		if neverRan(v) {
			p := failed(v, podFailure(v), tarnv1.VolumePending, attempt, now)
			if hasNoNode(v) { // else it has ended, and stays so that its author can read its log
				p = withdraw(v, p)
			}
			return p
		}
		if until := neverRanUntil(v, now); !until.IsZero() {
			return Plan{Next: until}
		}
		return failed(v, podFailure(v), tarnv1.VolumeUndoing, attempt, now)
	}
	switch {
	case (!needed(v) || reclassed(v)) && neverRan(v):
		status, what := v.Record.Status.DeepCopy(), "claim was deleted"
		if needed(v) {
			what = "StorageClass was created again"
		} else if wanted(v) {
			what = "PavVolume was deleted"
		}
		status.Phase, status.Handle, status.NextAttemptTime = tarnv1.VolumePending, "", nil
		sayProvisioned(status, v.Record, reasonClaimGone, "the "+what+" before a node was found for the volume")
		return withdraw(v, writes(v, status))
	case !wanted(v) && hasNoNode(v):
		return undo(v, reasonClaimGone, "the claim was deleted while its creation pod, which was started again, waited for a node")
	}
	return await(v)
}

// planCreated hands the volume over, and then ends it by its reclaim policy. The pods of its
// creation, whose results are recorded, are removed.
func planCreated(v *View, now time.Time) Plan {
	if !handedOver(v.Record) {
		return Plan{Act: ActHandOver}
	}
	p := planHandedOver(v, now)
	if left := earlierPods(v); len(left) > 0 {
		p.Actions = append([]action.Action{action.DiscardPods{Pods: left}}, p.Actions...)
	}
	return p
}

// earlierPods are the pods that validated and created the volume, and those that undid an earlier
// attempt. A later deletion pod, or a creation pod that creates the volume anew, may already run.
func earlierPods(v *View) []corev1.Pod {
	return v.podsWith(func(pod *corev1.Pod) bool {
		switch tarnv1.Step(pod.Labels[tarnv1.LabelStep]) {
		case tarnv1.StepValidation, tarnv1.StepCreation:
			return pod.Labels[tarnv1.LabelScrub] == ""
		case tarnv1.StepDeletion: // the record may be behind, so the name tells the attempt
			for attempt := range v.Record.Status.DeletionAttempts {
				if pod.Name == steppod.PodName(tarnv1.StepDeletion, v.Record.Spec.Claim.UID, attempt+1) {
					return true
				}
			}
		}
		return false
	})
}

// hasNoNode says whether the current pod got no node, so that it created nothing.
func hasNoNode(v *View) bool {
	o := v.Observed.State
	return v.Pod != nil && v.Pod.Spec.NodeName == "" && v.Pod.DeletionTimestamp == nil && (o == steppod.PodStarting || o == steppod.PodFailed)
}

// neverRan says whether no container of this attempt has ever run, so that nothing was created. Its
// first pod got no node, or the kubelet ended it before a container started. A deletion pod would
// wait endlessly for the same node, image or Secret.
//
// Only the first pod of an attempt proves this: a later one follows a pod that may have run and was
// evicted or deleted. Only Tarn marks a pod as the first, so a pod that a user put in its place has
// no mark.
func neverRan(v *View) bool {
	return v.Observed.Inputs.First && (hasNoNode(v) || v.Pod != nil && steppod.NeverRan(v.Pod))
}

// neverRanUntil is how long the controller waits for the kubelet to report whether a pod past its
// deadline ever ran. It is zero if the answer would change nothing.
func neverRanUntil(v *View, now time.Time) time.Time {
	if !v.Observed.Inputs.First || v.Observed.State != steppod.PodFailed || v.Pod == nil {
		return time.Time{}
	}
	return steppod.UnstartedUntil(v.Pod, now)
}

// withdraw deletes the current pod before a plan, only in the version that was seen without a node.
// If the scheduler has given it a node meanwhile, its version differs and it stays.
func withdraw(v *View, p Plan) Plan {
	p.Actions = append([]action.Action{action.Delete{Object: v.Pod, Unchanged: true, Present: true}}, p.Actions...)
	return p
}

func provisionerGone(v *View) *steppod.StepError {
	if v.Provisioner != nil && v.Provisioner.UID == v.Record.Spec.Provisioner.UID {
		return nil
	}
	return &steppod.StepError{Step: stepOf(v.Record), Reason: reasonNotReady, Message: fmt.Sprintf(
		"PavProvisioner %q was removed while it created this volume", v.Record.Spec.Provisioner.Name)}
}

// created is the status once handle and capacity are known. It has the node too if the volume is
// tied to one. pod is the creation pod, nil for none.
func created(v *View, pod *corev1.Pod, inputs tarnv1.PodInputs, result *tarnv1.PodResult) (*tarnv1.PavVolumeStatus, error) {
	record := v.Record
	handle, bytes, err := steppod.CreationResult(record, inputs, result)
	if err != nil {
		return nil, err
	}
	status := record.Status.DeepCopy()
	if tied(v) && status.NodeName == "" {
		if pod == nil {
			return nil, &steppod.StepError{Step: tarnv1.StepCreation, Reason: steppod.ReasonInvalid, Message: "spec.topology is Node, but nothing says " +
				"which node: give spec.volumeCreation a podTemplate, or the StorageClass volumeBindingMode WaitForFirstConsumer"}
		}
		status.NodeName = pod.Spec.NodeName
	}
	if follows(v) { // its claims say where it is from now on
		status.NodeName = ""
	}
	status.Phase, status.Handle, status.Capacity = tarnv1.VolumeCreated, handle, bytes
	status.LastError, status.NextAttemptTime = nil, nil
	sayProvisioned(status, record, reasonInProgress, "the volume is created; its PersistentVolume is being written")
	return status, nil
}

// tied says whether the volume is on one node.
func tied(v *View) bool {
	return v.Provisioner != nil && v.Provisioner.Spec.Topology == pavv1.TopologyNode
}

// begun is the plan before the pod of a step starts, so that the intent is recorded before the side
// effect. It records the handle that a creation will use, and the claims to be made.
func begun(v *View, phase tarnv1.VolumePhase, attempt int32, prepared *steppod.Prepared, claims []*corev1.PersistentVolumeClaim) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase, status.Attempts, status.NextAttemptTime = phase, attempt, nil
	status.PodNamespace, status.Handle = prepared.Pod.Namespace, prepared.Inputs.Handle
	status.Claims = withClaims(status.Claims, claims)
	sayProvisioned(status, v.Record, reasonInProgress, creationRuns(attempt, phase))
	return writes(v, status)
}

func creationRuns(attempt int32, phase tarnv1.VolumePhase) string {
	return fmt.Sprintf("attempt %d: %s", attempt, phase)
}

// failed records a failure of an attempt. The phase becomes Pending if nothing can have been
// created, else Undoing. After Undoing, done sets the time of the next attempt, because the
// backoff begins when everything is undone.
func failed(v *View, err *steppod.StepError, into tarnv1.VolumePhase, attempt int32, now time.Time) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase, status.Attempts, status.NextAttemptTime = into, attempt, nil
	if into == tarnv1.VolumeUndoing {
		beginUndoing(status, v)
	} else {
		status.Handle = ""
		status.NextAttemptTime = steppod.RetryAt(v.Record, attempt, now)
	}
	status.LastError = err.Recorded(v.Provisioner, now)
	sayProvisioned(status, v.Record, err.Reason, err.Message)
	return writes(v, status, warnClaim(v, fmt.Sprintf("Attempt%d", attempt), err.Message)...)
}

// undo begins to delete what a creation that did not fail may have created.
func undo(v *View, reason, why string) Plan {
	status := v.Record.Status.DeepCopy()
	status.Phase = tarnv1.VolumeUndoing
	beginUndoing(status, v)
	sayProvisioned(status, v.Record, reason, why)
	return writes(v, status)
}

// beginUndoing prepares a status for a new deletion. It records the handle that the creation pod
// was given or returned, and the pod's node. So the deletion acts on the same volume even if the
// creation did not finish.
func beginUndoing(status *tarnv1.PavVolumeStatus, v *View) {
	o := v.Observed
	status.DeletionAttempts++
	if status.Handle == "" {
		status.Handle = o.Inputs.Handle
	}
	if o.Result != nil && o.Result.Handle != nil && *o.Result.Handle != "" {
		status.Handle = *o.Result.Handle
	}
	if v.Pod != nil && v.Pod.Spec.NodeName != "" && tied(v) {
		status.NodeName = v.Pod.Spec.NodeName
	}
}
