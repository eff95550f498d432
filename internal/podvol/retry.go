package podvol

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// FirstRetry and LastRetry bound the pause after a creation, expansion or deletion that
// failed.
const (
	FirstRetry = 2 * time.Second
	LastRetry  = 5 * time.Minute
)

// RetryAt is when what has failed n times for a volume, n from 1, is tried again: the pause
// doubles with each. The pause before a creation begins when the one before is undone:
// counted from the failure, it would go by while a slow machine undoes, and one attempt
// follow the other.
func RetryAt(record *tarnv1.PavVolume, n int32, now time.Time) *metav1.Time {
	at := metav1.NewTime(now.Add(kube.Backoff(n, FirstRetry, LastRetry, string(record.UID))))
	return &at
}
