//go:build integration

package bind

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"tarn.dev/tarn/internal/testkit"
)

func TestClaimsAndVolumesAreBoundOneToOne(t *testing.T) {
	w := newWorld(t, testkit.APIServer(t))
	killer := testkit.NewKiller(0)
	stop := w.start(killer.Wrap(w.config), nil, Options{})
	defer stop()
	const n = 50
	claims := make([]*corev1.PersistentVolumeClaim, n)
	for i := range n {
		w.makeVolume(volumeOf(fmt.Sprintf("one-%d", i), "1Gi", func(v *corev1.PersistentVolume) {
			v.Spec.StorageClassName, v.Status.Phase = "one", corev1.VolumePending
		}))
		claims[i] = w.makeClaim(claimOf("1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Namespace, c.Name, c.Spec.StorageClassName = "default", fmt.Sprintf("one-%d", i), ptr.To("one")
		}))
	}
	volumes := map[string]bool{}
	for _, claim := range claims {
		w.until(func() string {
			w.must(w.client.Get(w.ctx, clientKey(claim), claim))
			return w.joined(claim, &corev1.PersistentVolume{ObjectMeta: metaNamed(claim.Spec.VolumeName)})
		})
		volumes[claim.Spec.VolumeName] = true
	}
	if len(volumes) != n {
		t.Errorf("%d claims share %d volumes", n, len(volumes))
	}
	// Available, and the four writes of a binding.
	if got := killer.Writes(); got != 5*n {
		t.Errorf("took %d writes for %d bindings of new volumes, want %d", got, n, 5*n)
	}
}
