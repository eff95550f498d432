package steppod

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

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
	return fmt.Sprintf("storage with handle %q of PavProvisioner %q%s is kept if it exists; delete it by hand",
		cmp.Or(record.Status.Handle, DefaultHandle(record)), record.Spec.Provisioner.Name, node)
}
