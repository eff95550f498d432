package podvol

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// FirstRetry and LastRetry bound the pause after a creation or deletion that failed.
const (
	FirstRetry = 2 * time.Second
	LastRetry  = 5 * time.Minute
)

// RetryAt is when a creation or deletion of a volume is tried again whose nth attempt has
// failed, n from 1: the pause doubles with each. now is when nothing runs for the attempt
// any more, what undoes it included; counted from the failure, the pause would go by
// while a slow machine undoes, and the volume be tried without any.
func RetryAt(record *tarnv1.PavVolume, n int32, now time.Time) *metav1.Time {
	at := metav1.NewTime(now.Add(kube.Backoff(n, FirstRetry, LastRetry, string(record.UID))))
	return &at
}
