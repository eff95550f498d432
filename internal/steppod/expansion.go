package steppod

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// The fields of volumeExpansion. The section serves two steps. A step must not evaluate the pod of
// the other, because it lacks that pod's variables.
const (
	fieldPod     = "podTemplate"
	fieldNodePod = "nodePodTemplate"
)

// ExpandsOnNodes says whether nodes must act when a volume of the provisioner grows. A section that
// is one template counts as yes, because only its evaluation shows its fields. If the provisioner
// was removed by force, it is no: nothing says what to do.
func ExpandsOnNodes(p *pavv1.PavProvisioner) bool {
	if p == nil {
		return false
	}
	object, err := decodeRaw(p.Spec.VolumeExpansion)
	if err != nil {
		return false
	}
	fields, isMapping := object.(map[string]any)
	return !isMapping || fields[fieldNodePod] != nil
}

// templateOf is the field of a step's section that contains its pod.
func templateOf(step tarnv1.Step) string {
	if step == tarnv1.StepNodeExpansion {
		return fieldNodePod
	}
	return fieldPod
}

// stepsOf gives the steps that a section serves.
func stepsOf(step tarnv1.Step) []tarnv1.Step {
	if step == tarnv1.StepExpansion {
		return []tarnv1.Step{tarnv1.StepExpansion, tarnv1.StepNodeExpansion}
	}
	return []tarnv1.Step{step}
}

// objectOf is the section of a step, without the pod of another step.
func objectOf(p *pavv1.PavProvisioner, step tarnv1.Step) (any, error) {
	object, err := decodeRaw(rawOf(p, step))
	fields, isMapping := object.(map[string]any)
	if err != nil || !isMapping {
		return object, err
	}
	switch step {
	case tarnv1.StepExpansion:
		delete(fields, fieldNodePod)
	case tarnv1.StepNodeExpansion:
		delete(fields, fieldPod)
	}
	return fields, nil
}

// ExpansionVars is the context of volumeExpansion.podTemplate: that of the creation, with the
// present claim, and handle, capacity and newCapacity.
func ExpansionVars(record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim, newCapacity int64) (map[string]any, error) {
	vars, err := RecordVars(record, claim)
	if err != nil {
		return nil, err
	}
	vars["requestedMinCapacity"] = newCapacity
	vars["handle"] = record.Status.Handle
	vars["capacity"] = record.Status.Capacity
	vars["newCapacity"] = newCapacity
	return vars, nil
}

// NodeExpansion is a volume that must grow on a node where it is staged.
type NodeExpansion struct {
	Stage *tarnv1.PavStage
	// Record is nil for a volume that Tarn has not made, which is expanded by hand.
	Record *tarnv1.PavVolume
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	Node   *corev1.Node
	// NewCapacity is in bytes.
	NewCapacity int64
	Attempt     int32
}

// NodeExpansionVars is the context of volumeExpansion.nodePodTemplate: that of
// volumeExpansion.podTemplate together with that of staging. A volume without a record was not
// created by Tarn. It has the context of staging, with requestedMinCapacity and newCapacity.
//
// Variable capacity is the capacity in the claim's status: the old size until the first node has
// grown.
func NodeExpansionVars(e NodeExpansion) (map[string]any, error) {
	vars := map[string]any{"requestedMinCapacity": e.NewCapacity, "newCapacity": e.NewCapacity}
	if e.Record != nil {
		var err error
		if vars, err = ExpansionVars(e.Record, e.Claim, e.NewCapacity); err != nil {
			return nil, err
		}
	}
	staged, err := StageVars(e.Stage, e.Volume, e.Claim, e.Node)
	if err != nil {
		return nil, err
	}
	maps.Copy(vars, staged)
	vars["capacity"] = volume.Bytes(e.Claim.Status.Capacity[corev1.ResourceStorage])
	return vars, nil
}

// PrepareExpansion evaluates volumeExpansion for a claim that requests newCapacity bytes. A size
// above the claim's limit or volumeValidation.maxCapacity gives a StepError with ReasonRefused.
func (s *Steps) PrepareExpansion(ctx context.Context, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim, newCapacity int64, attempt int32) (*Prepared, error) {
	vars, err := ExpansionVars(record, claim, newCapacity)
	if err != nil {
		return nil, err
	}
	if err := s.checkExpansion(ctx, p, record, claim, newCapacity); err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, tarnv1.StepExpansion, p, record.Spec.Claim.Namespace, record.Name, vars)
	if err != nil {
		return nil, err
	}
	return s.prepare(recordOrder(tarnv1.StepExpansion, p, record, attempt), section)
}

// checkExpansion checks the new size against the limits that applied to the creation.
func (s *Steps) checkExpansion(ctx context.Context, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim, newCapacity int64) error {
	if most := record.Spec.RequestedMaxCapacity; most != nil && newCapacity > *most {
		return failed(tarnv1.StepExpansion, ReasonRefused, "the claim's spec.resources.requests.storage is %s, more than its spec.resources.limits.storage, %s; request at most that", volume.Size(newCapacity), volume.Size(*most))
	}
	grown := record.DeepCopy()
	grown.Spec.RequestedMinCapacity = newCapacity
	section, err := s.evaluateRecord(ctx, tarnv1.StepValidation, p, grown, claim)
	if err != nil {
		return err
	}
	most, err := section.MaxCapacity.parse("spec.volumeValidation.maxCapacity", volume.RoundUp)
	if err != nil {
		return failed(tarnv1.StepExpansion, ReasonInvalid, "%v", err)
	}
	if most != nil && newCapacity > *most {
		return failed(tarnv1.StepExpansion, ReasonRefused, "PavProvisioner %q cannot provision volumes with capacity greater than %s, the claim requests %s", p.Name, volume.Size(*most), volume.Size(newCapacity))
	}
	return nil
}

// PrepareNodeExpansion evaluates the node's part of volumeExpansion. Pod is nil if the node has
// nothing to do.
func (s *Steps) PrepareNodeExpansion(ctx context.Context, p *pavv1.PavProvisioner, e NodeExpansion) (*Prepared, error) {
	vars, err := NodeExpansionVars(e)
	if err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, tarnv1.StepNodeExpansion, p, e.Claim.Namespace, e.Volume.Name, vars)
	if err != nil {
		return nil, err
	}
	section.PodTemplate = section.NodePodTemplate
	return s.prepare(s.stageOrder(tarnv1.StepNodeExpansion, p, e.Stage, e.Attempt), section)
}

// ExpansionResult is the size in bytes that a volume has grown to. It is what the pod wrote to
// /pav/capacity, or else the size asked for. result is nil if there was no pod. The error is a
// StepError.
func ExpansionResult(record *tarnv1.PavVolume, newCapacity int64, result *tarnv1.PodResult) (int64, error) {
	fail := func(format string, args ...any) (int64, error) {
		return 0, failed(tarnv1.StepExpansion, ReasonResultInvalid, format, args...)
	}
	if result == nil {
		return newCapacity, nil
	}
	if result.Unreadable != "" {
		return fail("the expansion pod left a file in /pav that cannot be read: %s", result.Unreadable)
	}
	if result.Capacity == nil {
		return newCapacity, nil
	}
	bytes, err := volume.ParseCapacity(*result.Capacity, volume.RoundUp)
	if err != nil {
		return fail("/pav/capacity: %v", err)
	}
	if bytes < newCapacity {
		return fail("the volume has %s after the expansion pod, the claim requests %s", volume.Size(bytes), volume.Size(newCapacity))
	}
	if most := record.Spec.RequestedMaxCapacity; most != nil && bytes > *most {
		return fail("the volume has %s after the expansion pod, the claim's limit is %s", volume.Size(bytes), volume.Size(*most))
	}
	return bytes, nil
}
