package provision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestANodeThatWasGivenBackIsNotTriedAgainByACacheThatIsBehind(t *testing.T) {
	chosen := func(node string) *corev1.PersistentVolumeClaim {
		return testkit.Claim("ns", "data", "u1", "prov", func(c *corev1.PersistentVolumeClaim) {
			if node != "" {
				c.Annotations[annSelectedNode] = node
			}
		})
	}
	record := testkit.Record(chosen(""), "prov", tarnv1.VolumePending, func(r *tarnv1.PavVolume) { r.Spec.WaitsForNode = true })
	p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode })
	for now, want := range map[string]int{"": 0, "n2": 0, "n1": 1} {
		w := newWorld(t, chosen(now), record, p, testkit.Class("prov"))
		w.remembering(chosen("n1"), w.record("u1"), p, testkit.Class("prov"))
		w.look("u1")
		if pods := w.pods(); len(pods) != want {
			t.Errorf("the claim says node %q and the cache n1: %d pods, want %d", now, len(pods), want)
		}
	}
}
