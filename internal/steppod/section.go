package steppod

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Reasons of a failed step. They are in status.lastError, conditions and Events.
const (
	// ReasonTemplate: a template could not be evaluated. Correct the template that the message
	// names.
	ReasonTemplate = "TemplateFailed"
	// ReasonInvalid: a section of the PavProvisioner is invalid after its templates were
	// evaluated. Correct the field that the message names.
	ReasonInvalid = "SectionInvalid"
	// ReasonRefused: spec.volumeValidation rejects the claim. Change the claim, or use another
	// class.
	ReasonRefused = "ClaimRefused"
	// ReasonVolumeRefused: the provisioner rejects a PersistentVolume that was written by hand.
	// Correct the volume as the message says.
	ReasonVolumeRefused = "VolumeRefused"
	// ReasonHandleTaken: another volume has the handle. Change the template of the handle, or
	// remove the other volume.
	ReasonHandleTaken = "HandleTaken"
	// ReasonHandleGoing: another volume with the handle is still being deleted. Wait: the step
	// continues when that volume is gone.
	ReasonHandleGoing = "HandleGoing"
	// ReasonPodRefused: the API server rejects the pod, for example because of a quota or a
	// policy. Correct what the message names.
	ReasonPodRefused = "PodRefused"
	// ReasonNamespaceGone: the namespace of the pod does not exist or is being deleted. Create it
	// again.
	ReasonNamespaceGone = "NamespaceGone"
	// ReasonNodeGone: the node where the step has to run does not exist any more. If it does not
	// come back, its storage is lost.
	ReasonNodeGone = "NodeGone"
	// ReasonPodFailed: the pod failed. The message has the text of /pav/error or the end of the
	// log; correct the cause.
	ReasonPodFailed = "PodFailed"
	// ReasonPodDeadline: the pod did not succeed within its deadline. See what it waits for, or
	// raise activeDeadlineSeconds.
	ReasonPodDeadline = "PodDeadlineExceeded"
	// ReasonPodForeign: a pod with the name of the step's pod exists, and Tarn did not create it.
	// Delete that pod.
	ReasonPodForeign = "PodNotOurs"
	// ReasonResultLost: the pod succeeded, but what it wrote to /pav was lost. The next attempt
	// follows by itself.
	ReasonResultLost = "ResultLost"
	// ReasonResultInvalid: the pod wrote an invalid file to /pav. Correct the script that writes
	// the file that the message names.
	ReasonResultInvalid = "ResultInvalid"
)

// StepError is a failure that an immediate retry would repeat. It is recorded, and the step is
// retried with a growing delay. Any other error of this package comes from the connection to the
// API server, and is retried as usual.
type StepError struct {
	// Step is the step that failed.
	Step tarnv1.Step
	// Reason is one of the Reason constants.
	Reason string
	// Message is for users.
	Message string
}

func (e *StepError) Error() string { return e.Message }

func failed(step tarnv1.Step, reason, format string, args ...any) *StepError {
	return &StepError{Step: step, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Recorded is the error in the form that a record keeps. p is the provisioner that the step used,
// nil if it was deleted.
func (e *StepError) Recorded(p *pavv1.PavProvisioner, now time.Time) *tarnv1.PavVolumeError {
	recorded := &tarnv1.PavVolumeError{Step: e.Step, Reason: e.Reason, Message: kube.Message(e.Message), Time: metav1.NewTime(now)}
	if p != nil {
		recorded.ProvisionerGeneration = p.Generation
	}
	return recorded
}

// AsStepError gives the StepError in err, or nil.
func AsStepError(err error) *StepError {
	var s *StepError
	if errors.As(err, &s) {
		return s
	}
	return nil
}

// sectionNames are the fields of spec that hold templates, by step.
var sectionNames = map[tarnv1.Step]string{
	tarnv1.StepValidation: "volumeValidation",
	tarnv1.StepCreation:   "volumeCreation",
	tarnv1.StepDeletion:   "volumeDeletion",
	tarnv1.StepRecycling:  "volumeRecycling",
	tarnv1.StepStaging:    "volumeStaging",
	tarnv1.StepUnstaging:  "volumeUnstaging",

	tarnv1.StepExpansion:     "volumeExpansion",
	tarnv1.StepNodeExpansion: "volumeExpansion",
}

// capacity is a size in a section: a JSON number or a string.
type capacity string

func (c *capacity) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err == nil {
		*c = capacity(text)
		return nil
	}
	var number json.Number
	if err := json.Unmarshal(data, &number); err != nil {
		return fmt.Errorf("a capacity must be a number of bytes or a quantity like 10Gi, not %s", data)
	}
	*c = capacity(number.String())
	return nil
}

// seconds is a time in a section: a JSON number, or a string of digits as a template gives it.
type seconds int64

func (s *seconds) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `" `)
	if text == "null" {
		return nil // as absent
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || number < 1 || number > maxDeadlineSeconds {
		return fmt.Errorf("a deadline must be a whole number of seconds from 1 to %d, not %s", maxDeadlineSeconds, data)
	}
	*s = seconds(number)
	return nil
}

// parse gives bytes, nil for an absent field; field names it in the error.
func (c *capacity) parse(field string, r volume.Rounding) (*int64, error) {
	if c == nil {
		return nil, nil
	}
	bytes, err := volume.ParseCapacity(string(*c), r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return &bytes, nil
}

// podTemplate is a PodTemplateSpec that accepts only metadata and spec.
type podTemplate struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     corev1.PodSpec    `json:"spec"`
}

// evaluatedSection has the fields of all sections. fieldsOf says which of them a section may have.
type evaluatedSection struct {
	VolumeModes []corev1.PersistentVolumeMode       `json:"volumeModes"`
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes"`
	MinCapacity *capacity                           `json:"minCapacity"`
	MaxCapacity *capacity                           `json:"maxCapacity"`
	Handle      *string                             `json:"handle"`
	Capacity    *capacity                           `json:"capacity"`
	PodTemplate *podTemplate                        `json:"podTemplate"`
	Recovery    tarnv1.StageRecovery                `json:"recovery"`
	// DeadlineSeconds is how long a staging pod may take to make the volume available.
	DeadlineSeconds seconds                `json:"deadlineSeconds"`
	Methods         []tarnv1.RecycleMethod `json:"methods"`

	NodePodTemplate *podTemplate `json:"nodePodTemplate"`
}

// fieldsOf says which fields each section knows.
var fieldsOf = map[tarnv1.Step][]string{
	tarnv1.StepValidation: {"volumeModes", "accessModes", "minCapacity", "maxCapacity", "podTemplate"},
	tarnv1.StepCreation:   {"handle", "capacity", "podTemplate"},
	tarnv1.StepDeletion:   {"podTemplate"},
	tarnv1.StepRecycling:  {"methods", "podTemplate"},
	tarnv1.StepStaging:    {"podTemplate", "recovery", "deadlineSeconds"},
	tarnv1.StepUnstaging:  {"podTemplate"},

	tarnv1.StepExpansion:     {"podTemplate", "nodePodTemplate"},
	tarnv1.StepNodeExpansion: {"podTemplate", "nodePodTemplate"},
}

// decodeRaw reads the JSON of a section into maps, lists, strings, numbers,
// booleans and nil. An absent section is an empty map.
func decodeRaw(raw *apiextensionsv1.JSON) (any, error) {
	if raw == nil || len(raw.Raw) == 0 || string(raw.Raw) == "null" {
		return map[string]any{}, nil
	}
	return decodeJSON(raw.Raw)
}

// decodeJSON decodes whole numbers to int64 if they fit.
func decodeJSON(data []byte) (any, error) {
	var object any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		return nil, err
	}
	return object, nil
}

// decodeSection decodes the fields of an evaluated section and rejects unknown ones.
func decodeSection(step tarnv1.Step, object any) (*evaluatedSection, error) {
	name := sectionNames[step]
	fields, ok := object.(map[string]any)
	if object == nil {
		fields, ok = map[string]any{}, true
	}
	if !ok {
		return nil, fmt.Errorf("spec.%s must be a mapping, not %s", name, kindOf(object))
	}
	if err := onlyKnown(step, fields); err != nil {
		return nil, err
	}
	dropEmpty(fields)
	if err := checkLists("spec."+name, fields); err != nil {
		return nil, err
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("spec.%s: %w", name, err)
	}
	section := &evaluatedSection{}
	strict, err := kjson.UnmarshalStrict(data, section)
	if err != nil {
		return nil, fmt.Errorf("spec.%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("spec.%s: %w", name, errors.Join(strict...))
	}
	return section, nil
}

func onlyKnown(step tarnv1.Step, fields map[string]any) error {
	known := fieldsOf[step]
	for _, key := range sortedKeys(fields) {
		if !slices.Contains(known, key) {
			return fmt.Errorf("spec.%s.%s: unknown field; known are %s", sectionNames[step], key, strings.Join(known, ", "))
		}
	}
	return nil
}
