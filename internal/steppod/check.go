package steppod

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// Problem is one mistake in a PavProvisioner as written.
type Problem struct {
	// Field is the path from spec, like spec.volumeStaging.podTemplate.
	Field string
	// Line and Column are counted from 1 within the template. They are 0 unless the problem is one
	// of syntax.
	Line, Column int
	// Message says what is wrong and what is expected.
	Message string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("%s: %s", p.Field, p.Message)
	}
	return fmt.Sprintf("%s: line %d, column %d: %s", p.Field, p.Line, p.Column, p.Message)
}

// Check gives every mistake in a provisioner that shows without evaluation: in its shape, the
// namespaces of its pods, and the syntax of every template. They are in the order of the sections,
// then of the paths.
func Check(p *pavv1.PavProvisioner, n Namespaces) []Problem {
	var problems []Problem
	dynamic := slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic)
	for _, s := range sections(p) {
		field := "spec." + sectionNames[s.step]
		if s.raw == nil {
			continue
		}
		if !dynamic && needsDynamic(s.step) {
			problems = append(problems, Problem{Field: field, Message: "needs Dynamic in spec.provisioningModes; add it or remove the section"})
		}
		object, err := decodeRaw(s.raw)
		if err != nil {
			problems = append(problems, Problem{Field: field, Message: err.Error()})
			continue
		}
		problems = append(problems, checkShape(s.step, field, object)...)
		if fields, ok := object.(map[string]any); ok {
			for _, key := range []string{"podTemplate", "nodePodTemplate"} {
				problems = append(problems, n.check(field+"."+key, fields[key])...)
			}
		}
		for _, e := range jinja.Check(object) {
			problems = append(problems, Problem{Field: joinPath(field, e.Path), Line: e.Line, Column: e.Column, Message: e.Message})
		}
	}
	return slices.Concat(problems, checkClaims(p), checkCapacity(p))
}

type rawSection struct {
	step tarnv1.Step
	raw  *apiextensionsv1.JSON
}

func sections(p *pavv1.PavProvisioner) []rawSection {
	return []rawSection{
		{tarnv1.StepValidation, p.Spec.VolumeValidation},
		{tarnv1.StepCreation, p.Spec.VolumeCreation},
		{tarnv1.StepDeletion, p.Spec.VolumeDeletion},
		{tarnv1.StepExpansion, p.Spec.VolumeExpansion},
		{tarnv1.StepRecycling, p.Spec.VolumeRecycling},
		{tarnv1.StepStaging, p.Spec.VolumeStaging},
		{tarnv1.StepUnstaging, p.Spec.VolumeUnstaging},
	}
}

// needsDynamic says whether a section applies only to volumes that Tarn has made.
func needsDynamic(step tarnv1.Step) bool {
	return slices.Contains([]tarnv1.Step{tarnv1.StepCreation, tarnv1.StepDeletion, tarnv1.StepExpansion, tarnv1.StepRecycling}, step)
}

func rawOf(p *pavv1.PavProvisioner, step tarnv1.Step) *apiextensionsv1.JSON {
	if step == tarnv1.StepNodeExpansion {
		return p.Spec.VolumeExpansion
	}
	for _, s := range sections(p) {
		if s.step == step {
			return s.raw
		}
	}
	return nil
}

// checkShape checks the part of a section outside templates. A string may stand for anything, since
// it may be a template.
func checkShape(step tarnv1.Step, field string, object any) []Problem {
	fields, ok := object.(map[string]any)
	if !ok {
		if _, template := object.(string); template {
			return nil
		}
		return []Problem{{Field: field, Message: "must be a mapping or a template, not " + kindOf(object)}}
	}
	var problems []Problem
	if err := onlyKnown(step, fields); err != nil {
		problems = append(problems, Problem{Field: field, Message: strings.TrimPrefix(err.Error(), field+".")})
	}
	for _, key := range sortedKeys(fields) {
		if fields[key] == nil {
			delete(fields, key) // as absent
			continue
		}
		problems = append(problems, checkField(field+"."+key, key, fields[key])...)
	}
	if _, has := fields["podTemplate"]; !has && missingPod[step] != "" {
		problems = append(problems, Problem{Field: field + ".podTemplate", Message: "is missing: " + missingPod[step]})
	}
	return problems
}

// missingPod says why a section needs a pod, for those that do.
var missingPod = map[tarnv1.Step]string{
	tarnv1.StepStaging:   "a volume is made available on a node by a staging pod",
	tarnv1.StepRecycling: "a volume is recycled by a pod; remove the section to leave it to Tarn",
}

func checkField(field, key string, value any) []Problem {
	wrong := func(want string) []Problem {
		return []Problem{{Field: field, Message: "must be " + want + ", not " + kindOf(value)}}
	}
	text, isString := value.(string)
	switch key {
	case "volumeModes", "accessModes", "methods":
		return checkList(field, value, listed[key], isTemplate)
	case "minCapacity", "maxCapacity", "capacity":
		switch value := value.(type) {
		case string:
			if isTemplate(value) {
				return nil
			}
		case int64, float64:
			text = fmt.Sprint(value)
		default:
			return wrong("a number of bytes, a quantity or a template")
		}
		if _, err := volume.ParseCapacity(text, volume.RoundDown); err != nil {
			return []Problem{{Field: field, Message: err.Error()}}
		}
	case "handle":
		if !isString {
			return wrong("a string")
		}
		if err := checkHandle(strings.TrimSpace(text)); err != nil && !isTemplate(text) {
			return []Problem{{Field: field, Message: err.Error()}}
		}
	case "recovery":
		if !isString {
			return wrong("a string")
		}
		if !isTemplate(text) && !slices.Contains(recoveries, tarnv1.StageRecovery(text)) {
			return []Problem{{Field: field, Message: fmt.Sprintf("%q is not one of %s", text, join(recoveries))}}
		}
	case "deadlineSeconds":
		if isTemplate(text) {
			return nil
		}
		if err := new(seconds).UnmarshalJSON(fmt.Append(nil, value)); err != nil {
			return []Problem{{Field: field, Message: err.Error()}}
		}
	case "podTemplate", "nodePodTemplate":
		return CheckPodTemplate(field, value)
	}
	return nil
}

// listed are the fields that are lists, each with its allowed values.
var listed = map[string][]string{
	"volumeModes": {"Filesystem", "Block"},
	"accessModes": {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"},
	"methods":     strings.Split(join(recycleMethods), ", "),
}

// dropEmpty removes empty items from the lists of an evaluated section, as "{% if x
// %}ReadWriteMany{% endif %}" gives. A provisioner with such an item written out is rejected.
func dropEmpty(fields map[string]any) {
	for key := range listed {
		if list, ok := fields[key].([]any); ok {
			fields[key] = slices.DeleteFunc(slices.Clone(list), func(item any) bool { return item == "" })
		}
	}
}

// checkLists applies the list checks of checkShape to an evaluated section. Otherwise a claim would
// be rejected for a mistake in a template.
func checkLists(field string, fields map[string]any) error {
	none := func(string) bool { return false }
	for _, key := range sortedKeys(fields) {
		if listed[key] == nil || fields[key] == nil {
			continue
		}
		if problems := checkList(field+"."+key, fields[key], listed[key], none); len(problems) > 0 {
			return errors.New(problems[0].String())
		}
	}
	return nil
}

// checkList checks a list of allowed values. Function hidden says whether a string is a template,
// so that its value is not known yet.
func checkList(field string, value any, allowed []string, hidden func(text string) bool) []Problem {
	list, ok := value.([]any)
	if !ok {
		if text, isString := value.(string); isString && hidden(text) {
			return nil
		}
		return []Problem{{Field: field, Message: "must be a list, or a template that sets yaml and gives one, not " + kindOf(value)}}
	}
	if len(list) == 0 {
		return []Problem{{Field: field, Message: "must not be empty; leave it out for the default, or have its template give null"}}
	}
	var problems []Problem
	for i, item := range list {
		text, ok := item.(string)
		if ok && (hidden(text) || slices.Contains(allowed, text)) {
			continue
		}
		shown, err := json.Marshal(item) // in quotes, lest an empty string or a newline at its end does not show
		if err != nil {
			shown = []byte(kindOf(item))
		}
		problems = append(problems, Problem{Field: fmt.Sprintf("%s[%d]", field, i), Message: fmt.Sprintf("%s is not one of %s", shown, strings.Join(allowed, ", "))})
	}
	return problems
}

// CheckPodTemplate gives what is wrong with a pod template, except in values that only its
// templates give.
func CheckPodTemplate(field string, value any) []Problem {
	fields, ok := value.(map[string]any)
	if !ok {
		if _, template := value.(string); template {
			return nil
		}
		return []Problem{{Field: field, Message: "must be a mapping or a template, not " + kindOf(value)}}
	}
	var problems []Problem
	wrong := func(path, message string) { problems = append(problems, Problem{Field: path, Message: message}) }
	for _, key := range sortedKeys(fields) {
		of, known := podTemplateFields[key]
		if !known {
			problems = append(problems, Problem{Field: field + "." + key, Message: "unknown field; a pod template has metadata and spec"})
			continue
		}
		switch fields[key].(type) {
		case map[string]any:
			CheckType(field+"."+key, of, fields[key], true, wrong)
		case string:
		default:
			problems = append(problems, Problem{Field: field + "." + key, Message: "must be a mapping or a template, not " + kindOf(fields[key])})
		}
	}
	return problems
}

// podTemplateFields are the fields of a pod template with their types.
var podTemplateFields = map[string]reflect.Type{"metadata": reflect.TypeFor[metav1.ObjectMeta](), "spec": reflect.TypeFor[corev1.PodSpec]()}

// recoveries are the values of volumeStaging.recovery, the default first.
var recoveries = []tarnv1.StageRecovery{tarnv1.RecoveryRebind, tarnv1.RecoveryRestartConsumers, tarnv1.RecoveryNone}

func isTemplate(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "{%") || strings.Contains(text, "{#")
}

// kindOf names the type of a JSON value for messages.
func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	default:
		return "a number"
	}
}

func joinPath(field, path string) string {
	if path == "" || strings.HasPrefix(path, "[") {
		return field + path
	}
	return field + "." + path
}

func sortedKeys(fields map[string]any) []string { return slices.Sorted(maps.Keys(fields)) }
