//go:build e2e

package e2e

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// ownersOf maps the finalizers of claims and volumes to their owner, in the words of the answer.
// Two are missing, because Kubernetes' garbage collector removes them at once where nothing has to
// be waited for.
var ownersOf = map[string]struct{ claim, volume map[string]string }{
	"Kubernetes' own": {claim: map[string]string{
		"kubernetes.io/pv-protection":      "Kubernetes' protection, until no claim is bound to the volume",
		"kubernetes.io/vac-protection":     "Kubernetes' protection, until nothing uses the class of attributes",
		"batch.kubernetes.io/job-tracking": "Kubernetes' Job controller, until it has counted the pod",
	}, volume: map[string]string{
		"kubernetes.io/pvc-protection": "Kubernetes' protection, until no pod uses the claim",
		"kubernetes.io/pv-controller":  "Kubernetes' binder, until it has destroyed the storage",
	}},
	"those of CSI drivers": {claim: map[string]string{
		"provisioner.storage.kubernetes.io/cloning-protection":                  "the CSI provisioner, until no clone of the claim is being made",
		"provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection": "the CSI provisioner, until no volume is made from the snapshot",
		"snapshot.storage.kubernetes.io/pvc-as-source-protection":               "the snapshot controller, until no snapshot is taken of the claim",
	}, volume: map[string]string{
		"external-provisioner.volume.kubernetes.io/finalizer": "the provisioner that made the volume, until it has destroyed the storage",
		"external-attacher/csi.example.org":                   "the attacher of CSI driver csi.example.org, until the volume is detached",
	}},
	"Tarn's": {claim: map[string]string{
		"tarn.dev/volume-record":      "Tarn's controller, until the storage is destroyed",
		"tarn.dev/stage-pod":          "Tarn's controller, until the volume is unstaged",
		"tarn.dev/stage-node":         "Tarn's node agent, until the node has unmounted it",
		"tarn.dev/app":                "Tarn's controller, until the app's pods are gone, and its claims except those to preserve",
		"tarn.dev/pool":               "Tarn's controller, until the pool's spare volumes are being deleted",
		"tarn.dev/provisioner-in-use": "Tarn's controller, until no volume needs the provisioner",
		"tarn.dev/in-process":         "Tarn's controller, until the claim is bound, or what was made for it is removed",
	}},
}

// For a known finalizer the answer names its owner, and no command removes it.
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
		claim.Annotations = map[string]string{tarn.AnnotationPlugin: "example.org/former"} // no controller serves this plugin any more
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
		{s.explainsClaim("held", "is Terminating: finalizer ", " keeps it; it belongs to "), onClaim},
		{s.explains("volume", vol.Name, "is Terminating: finalizer ", " keeps it; it belongs to "), onVolume},
	} {
		for finalizer, owner := range c.want {
			next := "when its owner removes it"
			if finalizer == tarn.FinalizerInProcess {
				next = "when Tarn has removed what was made, which takes longer for much data"
			}
			if !slices.ContainsFunc(c.of.Links, func(l link) bool {
				return l.State == "kept by finalizer "+finalizer && l.Message == "it belongs to "+owner && l.Next == next
			}) {
				t.Errorf("of finalizer %s it is not said that it belongs to %s: %+v", finalizer, owner, c.of.Links)
			}
		}
		if len(c.of.commands()) > 0 {
			t.Errorf("the commands are %q, which take finalizers from their owners", c.of.commands())
		}
	}
}

// owned makes a Secret owned by a claim. The garbage collector must delete it before the claim is
// gone.
func (s *scenario) owned(claim *corev1.PersistentVolumeClaim) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: claim.Name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID, BlockOwnerDeletion: ptr.To(true)},
	}}}
	s.create(secret)
	return secret
}

// collectorLooks waits until the garbage collector knows the existing Secrets. It then has deleted
// a later one whose owner does not exist.
func (s *scenario) collectorLooks() {
	s.t.Helper()
	ownerless := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "ownerless", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: "nobody", UID: "nobody"},
	}}}
	s.create(ownerless)
	s.gone(ownerless)
}

func TestExplainSaysWhatTheGarbageCollectorKeeps(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-collected")
	above, apart := s.claimWith("above"), s.claimWith("apart")
	below, left := s.owned(above), s.owned(apart)
	s.hold(below)
	lift := s.refuses("owners", write{"", "v1", "secrets", admissionv1.Update}, "request.namespace == '"+s.name+"' && request.name == '"+left.Name+"'")
	s.collectorLooks()
	for _, c := range []struct {
		claim           *corev1.PersistentVolumeClaim
		how             metav1.DeletionPropagation
		finalizer, what string
		ends            func()
	}{
		{above, metav1.DeletePropagationForeground, "foregroundDeletion", "until what the object owns is gone", func() { s.unhold(below) }},
		{apart, metav1.DeletePropagationOrphan, "orphan", "until it has orphaned what the object owns", lift},
	} {
		if err := suite.live.Delete(s.ctx, c.claim, client.PropagationPolicy(c.how)); err != nil {
			t.Fatal(err)
		}
		e := s.explainsClaim(c.claim.Name, "is Terminating: finalizer "+c.finalizer+" keeps it; it belongs to Kubernetes' garbage collector, "+c.what)
		if last := e.last(); last.State != "kept by finalizer "+c.finalizer || last.Next != "when its owner removes it" || len(e.commands()) > 0 {
			t.Errorf("the commands are %q, and the chain ends with %+v", e.commands(), last)
		}
		c.ends()
		s.gone(c.claim)
	}
	if owners := read(s, left).OwnerReferences; len(owners) > 0 {
		t.Errorf("Secret %s is still owned by %+v", left.Name, owners)
	}
}
