//go:build integration

package bind

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// The scheduler places a pod when its claim's binding is completed. The kubelet then reads the
// claim, and makes the pod wait for ten seconds if its phase is not Bound.
func TestNoClaimIsCompletedBeforeItIsCalledBound(t *testing.T) {
	t.Parallel()
	config := testkit.OwnAPIServer(t)
	for _, p := range paths {
		if !slices.Contains([]string{"free", "reserved", "held", "named", "made"}, p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			w, name := newWorld(t, config), "order-"+p.name
			claims, err := w.client.Watch(w.ctx, &corev1.PersistentVolumeClaimList{}, client.InNamespace("default"), client.MatchingFields{"metadata.name": name})
			w.must(err)
			defer claims.Stop()
			p.begin(w, name)
			defer w.start(w.config, nil, Options{})()
			for event := range claims.ResultChan() {
				c, ok := event.Object.(*corev1.PersistentVolumeClaim)
				if !ok {
					t.Fatalf("the watch ended with %v", event)
				}
				if volume.StateOfClaim(c) != volume.ClaimCompleted {
					continue
				}
				if c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != name {
					t.Errorf("completed, the claim is %s on %q", c.Status.Phase, c.Spec.VolumeName)
				}
				return
			}
			t.Error("the watch ended before the claim was completed")
		})
	}
}
