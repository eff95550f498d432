package steppod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/jinja"
)

// Section is a section of a provisioner as written, for use without a volume.
type Section struct {
	Step tarnv1.Step
	// Field is its path from spec, like spec.volumeCreation.
	Field string
	// Object is made of maps, lists, strings, numbers, booleans and nil. It is nil if the section
	// cannot be parsed: Check reports that.
	Object any
}

// Sections gives the sections of a provisioner, in the order of a volume's life. volumeExpansion
// appears twice, each time with the pod of one step.
func Sections(p *pavv1.PavProvisioner) []Section {
	var found []Section
	for _, s := range sections(p) {
		if s.raw == nil {
			continue
		}
		for _, step := range stepsOf(s.step) {
			object, err := objectOf(p, step)
			if err != nil {
				object = nil
			}
			found = append(found, Section{Step: step, Field: SectionField(step), Object: object})
		}
	}
	return found
}

// ClaimSections gives the templates in spec.claims, whose variables are those of the creation.
func ClaimSections(p *pavv1.PavProvisioner) (found []Section) {
	for i, c := range p.Spec.Claims {
		if object, err := decodeRaw(c.Template); err == nil {
			found = append(found, Section{Step: tarnv1.StepCreation, Field: claimField(i), Object: object})
		}
	}
	return found
}

// SectionField is the path of a step's section, like spec.volumeCreation.
func SectionField(step tarnv1.Step) string { return "spec." + sectionNames[step] }

// PodField is the field of a step's section that contains its pod.
func PodField(step tarnv1.Step) string { return templateOf(step) }

// KnownFields names the fields that the section at a path like spec.volumeCreation may have. It is
// nil for an unknown section.
func KnownFields(section string) []string {
	for step, known := range fieldsOf {
		if SectionField(step) == section {
			return slices.Clone(known)
		}
	}
	return nil
}

// Variables names what the templates of a step may read, sorted: variables, and functions that read
// from the API server. The mode matters for validation only. A volume made for a claim (Dynamic)
// has other variables than a volume written by hand (Static).
func Variables(step tarnv1.Step, mode pavv1.ProvisioningMode) ([]string, error) {
	record := &tarnv1.PavVolume{Spec: tarnv1.PavVolumeSpec{
		ClaimSnapshot: apiextensionsv1.JSON{Raw: []byte("{}")}, ClassSnapshot: apiextensionsv1.JSON{Raw: []byte("{}")},
		Source: &tarnv1.PavVolumeSource{},
	}}
	vol := &corev1.PersistentVolume{}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{}
	var vars map[string]any
	var err error
	switch {
	case step == tarnv1.StepValidation && mode == pavv1.ModeStatic:
		vars, err = StaticVars(vol, &corev1.PersistentVolumeClaim{})
	case step == tarnv1.StepStaging, step == tarnv1.StepUnstaging:
		vars, err = StageVars(&tarnv1.PavStage{}, vol, &corev1.PersistentVolumeClaim{}, &corev1.Node{})
	case step == tarnv1.StepExpansion:
		vars, err = ExpansionVars(record, &corev1.PersistentVolumeClaim{}, 0)
	case step == tarnv1.StepNodeExpansion:
		vars, err = NodeExpansionVars(NodeExpansion{Stage: &tarnv1.PavStage{}, Record: record, Volume: vol, Claim: &corev1.PersistentVolumeClaim{}, Node: &corev1.Node{}})
	case step == tarnv1.StepValidation:
		vars, err = ValidationVars(record, nil)
	case step == tarnv1.StepRecycling:
		vars, err = RecyclingVars(record, vol, "")
	case step == tarnv1.StepDeletion:
		vars, err = DeletionVars(record)
	default:
		vars, err = RecordVars(record, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("naming the variables of %s: %w", step, err)
	}
	addClaims(vars, step, &pavv1.PavProvisioner{}, "")
	return append(slices.Sorted(maps.Keys(vars)), getClaim, getVolume), nil
}

// Render evaluates the templates of a section and gives the result without checking it. own is the
// namespace of the volume's claim, and volumeName names the volume. A mistake in a template gives a *jinja.Error whose Path begins
// with the section's Field.
func (s *Steps) Render(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, own, volumeName string, vars map[string]any) (any, error) {
	object, err := objectOf(p, step)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SectionField(step), err)
	}
	known := maps.Clone(vars)
	(&lookups{reader: s.Reader, provisioner: p, own: own}).addTo(known)
	addClaims(known, step, p, volumeName)
	ctx, cancel := context.WithTimeout(ctx, evaluationTime)
	defer cancel()
	value, err := evaluateLiterally(ctx, object, known, s.Limits)
	var e *jinja.Error
	if errors.As(err, &e) {
		e.Path = joinPath(SectionField(step), e.Path)
		return nil, e
	}
	return value, err
}
