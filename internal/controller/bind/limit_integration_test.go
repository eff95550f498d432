//go:build integration

package bind

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"tarn.dev/tarn/internal/testkit"
)

// At this configuration's rate limit the writes alone would exceed the time limit of a case.
func TestTheBinderWritesWithoutTheRateLimitOfItsProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.OwnAPIServer(t))
	const pairs = 70 // two writes each at the least, one a second, for two minutes
	name := func(i int) string { return fmt.Sprintf("limit-%d", i) }
	for i := range pairs {
		w.claim(name(i), "1Gi", ofClass(name(i)))
		w.volume(name(i), "1Gi", class(name(i)), in(corev1.VolumePending))
	}
	slow := rest.CopyConfig(w.config)
	slow.QPS, slow.Burst = 1, 1
	defer w.start(slow, nil, Options{})()
	for i := range pairs {
		w.until(func() string { return w.joined(name(i), name(i)) })
	}
}
