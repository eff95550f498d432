//go:build e2e

package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownersOf are the finalizers that storage has by whose they are, in the words of the
// answer, but for three: what Kubernetes' garbage collector and Tarn's plugins hold, they
// let go at once where there is nothing to wait for.
var ownersOf = map[string]struct{ claim, volume map[string]string }{
	"Kubernetes' own": {claim: map[string]string{
		"kubernetes.io/pv-protection":      "Kubernetes' protection, until no claim has the volume",
		"kubernetes.io/vac-protection":     "Kubernetes' protection, until nothing uses the class of attributes",
		"batch.kubernetes.io/job-tracking": "Kubernetes' Job controller, until it has counted the pod",
	}, volume: map[string]string{
		"kubernetes.io/pvc-protection": "Kubernetes' protection, until no pod uses the claim",
		"kubernetes.io/pv-controller":  "Kubernetes' binder, until it has destroyed the storage",
	}},
	"those of CSI drivers": {claim: map[string]string{
		"provisioner.storage.kubernetes.io/cloning-protection":                  "the CSI provisioner, until nobody clones the claim",
		"provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection": "the CSI provisioner, until no volume is made from the snapshot",
		"snapshot.storage.kubernetes.io/pvc-as-source-protection":               "the snapshot controller, until no snapshot is taken of the claim",
	}, volume: map[string]string{
		"external-provisioner.volume.kubernetes.io/finalizer": "the provisioner that made the volume, until it has destroyed the storage",
		"external-attacher/csi.example.org":                   "the attacher of CSI driver csi.example.org, until the volume is detached",
	}},
	"Tarn's": {claim: map[string]string{
		"tarn.dev/volume-record":      "Tarn's controller, until the storage is destroyed",
		"tarn.dev/stage-pod":          "Tarn's controller, until the volume is unstaged",
		"tarn.dev/stage-node":         "Tarn's node agent, until the node has no mount of it",
		"tarn.dev/app":                "Tarn's controller, until the app's pods are gone, and its claims but those to be preserved",
		"tarn.dev/pool":               "Tarn's controller, until the pool's spare volumes are on their way out",
		"tarn.dev/provisioner-in-use": "Tarn's controller, until no volume needs the provisioner",
	}},
}

// Of a finalizer that is known it is told whose it is, and no command takes it off.
func TestExplainSaysWhoseEachFinalizerIs(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-finalizers")
	onClaim, onVolume := map[string]string{}, map[string]string{}
	for _, owners := range ownersOf {
		for finalizer, owner := range owners.claim {
			onClaim[finalizer] = owner
		}
		for finalizer, owner := range owners.volume {
			onVolume[finalizer] = owner
		}
	}
	claim := s.claimWith("held", func(claim *corev1.PersistentVolumeClaim) {
		for finalizer := range onClaim {
			claim.Finalizers = append(claim.Finalizers, finalizer)
		}
	})
	vol := s.byHand("held", driven, func(vol *corev1.PersistentVolume) {
		for finalizer := range onVolume {
			vol.Finalizers = append(vol.Finalizers, finalizer)
		}
	})
	for _, o := range []client.Object{claim, vol} {
		t.Cleanup(func() { s.unhold(o) })
		s.delete(o)
	}
	for _, c := range []struct {
		of   explanation
		want map[string]string
	}{
		{s.explainsClaim("held", "is Terminating: finalizer ", " keeps it, which is of "), onClaim},
		{s.explains("volume", vol.Name, "is Terminating: finalizer ", " keeps it, which is of "), onVolume},
	} {
		for finalizer, owner := range c.want {
			if !slices.ContainsFunc(c.of.Links, func(l link) bool {
				return l.State == "kept by finalizer "+finalizer && l.Message == "it is of "+owner && l.Next == "when its owner takes it off"
			}) {
				t.Errorf("of finalizer %s it is not said that it is of %s: %+v", finalizer, owner, c.of.Links)
			}
		}
		if len(c.of.commands()) > 0 {
			t.Errorf("the commands are %q, which take finalizers from their owners", c.of.commands())
		}
	}
}
