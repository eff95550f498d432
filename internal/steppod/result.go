package steppod

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// maxHandle is the most bytes of a handle: the CSI specification's limit for a volume ID.
const maxHandle = 128

// CreationResult is the handle and the size in bytes of a created volume. What the pod wrote to
// /pav comes before the section's fields, as in the original. The default handle and the size asked
// for come last.
//
// The fields are in inputs. Argument result is what the pod left, nil if there was no pod. The
// error is a StepError.
func CreationResult(record *tarnv1.PavVolume, inputs tarnv1.PodInputs, result *tarnv1.PodResult) (string, int64, error) {
	if result == nil {
		result = &tarnv1.PodResult{}
	}
	fail := func(format string, args ...any) (string, int64, error) {
		return "", 0, failed(tarnv1.StepCreation, ReasonResultInvalid, format, args...)
	}
	if result.Unreadable != "" {
		return fail("the creation pod left a file in /pav that cannot be read: %s", result.Unreadable)
	}
	handle := cmp.Or(inputs.Handle, DefaultHandle(record))
	if result.Handle != nil {
		handle = *result.Handle
		if err := checkHandle(handle); err != nil {
			return fail("/pav/handle: %v", err)
		}
	}
	bytes := inputs.Capacity
	if result.Capacity != nil {
		parsed, err := volume.ParseCapacity(*result.Capacity, volume.RoundUp)
		if err != nil {
			return fail("/pav/capacity: %v", err)
		}
		bytes = parsed
	}
	bytes = cmp.Or(bytes, record.Spec.RequestedMinCapacity)
	if least := record.Spec.RequestedMinCapacity; bytes < least {
		return fail("the volume has %s, the claim requests at least %s", volume.Size(bytes), volume.Size(least))
	}
	if most := record.Spec.RequestedMaxCapacity; most != nil && bytes > *most {
		return fail("the volume has %s, the claim's limit is %s", volume.Size(bytes), volume.Size(*most))
	}
	return handle, bytes, nil
}

// HandleTaken says that a creation gave the handle of another volume, holder, and what a person can
// do about it.
func HandleTaken(record *tarnv1.PavVolume, holder kube.Holder) *StepError {
	return failed(tarnv1.StepCreation, ReasonHandleTaken,
		"the creation returned volumeHandle %q, which %s has already: the volume is not used, and no deletion pod runs, because it would delete the other volume's data. "+
			"Correct PavProvisioner %q, delete by hand what was created beside the other volume, then delete the claim, or, to try again: kubectl delete pavvolume %s",
		cmp.Or(record.Status.Handle, DefaultHandle(record)), holder, record.Spec.Provisioner.Name, record.Name)
}

// HandleGoing says that a volume waits for another with its handle, whose storage is being deleted.
func HandleGoing(handle string, holder kube.Holder) string {
	return fmt.Sprintf("volumeHandle %q is still that of %s, whose storage is being deleted: the volume is created when that is done. To see the progress: tarn explain volume %s",
		handle, holder, holder.Name)
}

// checkHandle rejects a text that cannot be a CSI volume handle.
func checkHandle(handle string) error {
	switch {
	case handle == "":
		return errors.New("a volume handle must not be empty")
	case len(handle) > maxHandle:
		return fmt.Errorf("a volume handle must have at most %d bytes, this one has %d", maxHandle, len(handle))
	case !utf8.ValidString(handle):
		return errors.New("a volume handle must be UTF-8")
	}
	for _, r := range handle {
		if unicode.IsControl(r) {
			return fmt.Errorf("volume handle %q must not contain control characters", handle)
		}
	}
	return nil
}

// templateMessage puts the field of a section, and that in it, before an engine's error.
func templateMessage(field string, err error) string {
	var e *jinja.Error
	if !errors.As(err, &e) {
		return field + ": " + err.Error()
	}
	return Problem{Field: joinPath(field, e.Path), Line: e.Line, Column: e.Column, Message: e.Message}.String()
}

// FirstRetry and LastRetry limit the pause after a failed creation, expansion or deletion.
const (
	FirstRetry = 2 * time.Second
	LastRetry  = 5 * time.Minute
)

// RetryAt is when a step that has failed n times for a volume is retried, n from 1. The pause
// doubles with each failure. Before a creation the pause begins when the failed one is undone.
// Counted from the failure, the pause could pass while a slow machine undoes it.
func RetryAt(record *tarnv1.PavVolume, n int32, now time.Time) *metav1.Time {
	at := metav1.NewTime(now.Add(kube.Backoff(n, FirstRetry, LastRetry, string(record.UID))))
	return &at
}

// currentClass ends an AnnotationRetry that asks for the present parameters of the class.
const currentClass = "/current-class"

// RetryAfter is the value of AnnotationRetry that starts the attempt after this one at once.
func RetryAfter(step tarnv1.Step, attempt int32, withCurrentClass bool) string {
	value := fmt.Sprintf("%s-%d", step, attempt)
	if withCurrentClass {
		value += currentClass
	}
	return value
}

// Retried says whether an administrator has asked for another attempt after this one. It is true
// once, because the next attempt has another number.
func Retried(record *tarnv1.PavVolume, step tarnv1.Step, attempt int32) bool {
	return strings.TrimSuffix(record.Annotations[tarnv1.AnnotationRetry], currentClass) == RetryAfter(step, attempt, false)
}

// UndoneWithCurrentClass says whether a deletion attempt gets the present parameters of the class.
// Only the rest of a failed creation does. A volume that was in use lies where the parameters in
// its record say. With other parameters, a deletion pod would find nothing and report success, and
// the data would stay without a trace.
func UndoneWithCurrentClass(record *tarnv1.PavVolume, attempt int32) bool {
	return record.Status.Phase == tarnv1.VolumeUndoing &&
		record.Annotations[tarnv1.AnnotationRetry] == RetryAfter(tarnv1.StepDeletion, attempt-1, true)
}

// Forgotten says whether an administrator has given up a record. The record is being deleted, and
// the annotation names this record and not an earlier one of that name.
func Forgotten(record *tarnv1.PavVolume) bool {
	return record.DeletionTimestamp != nil && record.Annotations[tarnv1.AnnotationForget] == string(record.UID)
}

// GivenUp says what is left behind when a record is forgotten.
func GivenUp(record *tarnv1.PavVolume) string {
	node := ""
	if name := record.Status.NodeName; name != "" {
		node = fmt.Sprintf(" on node %q", name)
	}
	claims := ""
	for _, c := range record.Status.Claims {
		claims += fmt.Sprintf("; its data is in claim %s/%s", c.Namespace, c.Name)
	}
	return fmt.Sprintf("storage with handle %q of PavProvisioner %q%s is kept if it exists; delete it by hand%s",
		cmp.Or(record.Status.Handle, DefaultHandle(record)), record.Spec.Provisioner.Name, node, claims)
}
