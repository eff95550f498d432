package steppod

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// recycleMethods are the methods that volumeRecycling may do.
var recycleMethods = []tarnv1.RecycleMethod{tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard}

// Passage is a released volume that the provisioner's own pods recycle for its next user.
type Passage struct {
	Record *tarnv1.PavVolume
	Volume *corev1.PersistentVolume
	// Claim is the UID of the volume's scrub claim, from which the names of the pods derive.
	Claim  types.UID
	Method tarnv1.RecycleMethod
	// Handle is the handle to delete if it is not the volume's own, because a creation gave
	// another. Otherwise it is empty.
	Handle string
}

// RecycleSteps gives the steps, in order, in which a provisioner's own pods carry out a method. It
// is empty if the provisioner has no pods for the method. A section that is one template may
// support any method: only its evaluation shows which.
func RecycleSteps(p *pavv1.PavProvisioner, method tarnv1.RecycleMethod) []tarnv1.Step {
	if method == tarnv1.RecycleRecreate {
		steps := []tarnv1.Step{tarnv1.StepDeletion, tarnv1.StepCreation}
		if slices.ContainsFunc(steps, func(s tarnv1.Step) bool { return !hasPod(p, s) }) {
			return nil
		}
		return steps
	}
	if !slices.Contains(recycleMethods, method) || !hasPod(p, tarnv1.StepRecycling) {
		return nil
	}
	fields, ok := mappingOf(p, tarnv1.StepRecycling)
	if listed, isList := fields["methods"].([]any); ok && isList && !slices.Contains(listed, any(string(method))) && !slices.ContainsFunc(listed, isTemplated) {
		return nil
	}
	return []tarnv1.Step{tarnv1.StepRecycling}
}

func isTemplated(item any) bool {
	text, ok := item.(string)
	return ok && isTemplate(text)
}

// hasPod says whether a section has or may have a pod.
func hasPod(p *pavv1.PavProvisioner, step tarnv1.Step) bool {
	if rawOf(p, step) == nil {
		return false
	}
	fields, ok := mappingOf(p, step)
	return !ok || fields[fieldPod] != nil
}

// mappingOf is a section as a mapping; ok is false if the section is one template.
func mappingOf(p *pavv1.PavProvisioner, step tarnv1.Step) (fields map[string]any, ok bool) {
	object, err := objectOf(p, step)
	if err != nil {
		return nil, true
	}
	fields, ok = object.(map[string]any)
	return fields, ok
}

// RecyclingVars is DeletionVars with the requested method and the volume.
func RecyclingVars(record *tarnv1.PavVolume, vol *corev1.PersistentVolume, method tarnv1.RecycleMethod) (map[string]any, error) {
	vars, err := DeletionVars(record)
	if err != nil {
		return nil, err
	}
	vars["method"] = string(method)
	vars[varVolume], err = toObject(vol, corev1.SchemeGroupVersion.WithKind("PersistentVolume"))
	return vars, err
}

// PrepareRecycling evaluates the section of one of the RecycleSteps. The pod is the only one of
// that step in a passage, and its name shows whether it deletes another handle. A section without a
// pod gives a StepError.
func (s *Steps) PrepareRecycling(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, passage Passage) (*corev1.Pod, error) {
	var prepared *Prepared
	var err error
	switch step {
	case tarnv1.StepCreation:
		prepared, err = s.PrepareCreation(ctx, p, recreation(passage.Record), nil, 1)
	case tarnv1.StepDeletion:
		record := passage.Record
		if passage.Handle != "" {
			record = record.DeepCopy()
			record.Status.Handle = passage.Handle
		}
		prepared, err = s.PrepareDeletion(ctx, p, record, 1)
	default:
		prepared, err = s.prepareOwn(ctx, p, passage)
	}
	if err != nil {
		return nil, err
	}
	if prepared.Pod == nil {
		return nil, failed(step, ReasonInvalid, "%s.podTemplate evaluates to nothing, but a pod must recycle the volume", SectionField(step))
	}
	prepared.Pod.Name = RecyclePodName(step, passage.Claim, passage.Handle != "")
	return prepared.Pod, nil
}

func (s *Steps) prepareOwn(ctx context.Context, p *pavv1.PavProvisioner, passage Passage) (*Prepared, error) {
	vars, err := RecyclingVars(passage.Record, passage.Volume, passage.Method)
	if err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, tarnv1.StepRecycling, p, passage.Record.Spec.Claim.Namespace, passage.Record.Name, vars)
	if err != nil {
		return nil, err
	}
	if section.Methods != nil && !slices.Contains(section.Methods, passage.Method) {
		return nil, failed(tarnv1.StepRecycling, ReasonRefused, "spec.volumeRecycling of PavProvisioner %q does %s, not %s; choose one of these as %s",
			p.Name, join(section.Methods), passage.Method, tarnv1.AnnotationRecycle)
	}
	return s.prepare(recordOrder(tarnv1.StepRecycling, p, passage.Record, 1), section)
}

// RecyclePodName is the name of the pod of a step in a passage. other says that it deletes what a
// creation made under another handle.
func RecyclePodName(step tarnv1.Step, claim types.UID, other bool) string {
	if other {
		return PodName(step, claim, 2)
	}
	return PodName(step, claim, 1)
}

// recreation is a record that asks for an empty volume of the present size.
func recreation(record *tarnv1.PavVolume) *tarnv1.PavVolume {
	record = record.DeepCopy()
	record.Spec.RequestedMinCapacity = max(record.Spec.RequestedMinCapacity, record.Status.Capacity)
	record.Spec.Source = nil
	return record
}

// Recreated is the handle that a creation pod gave a volume that was recreated. If the new storage
// cannot be used, err is a StepError that says why, and handle is what to delete.
func Recreated(record *tarnv1.PavVolume, o Observation) (handle string, err error) {
	handle = cmp.Or(o.Inputs.Handle, DefaultHandle(record))
	if told := o.Result; told != nil && told.Handle != nil && checkHandle(*told.Handle) == nil {
		handle = *told.Handle
	}
	_, _, err = CreationResult(recreation(record), o.Inputs, o.Result)
	return handle, err
}
