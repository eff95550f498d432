//go:build integration

package protect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

// The API server acts as one before 1.36: it has no policy that adds finalizers, and its own plugin
// is off. The test also proves that Tarn can be installed there.
func TestWhereNoPolicyAddsFinalizersTheControllersDo(t *testing.T) {
	server := testkit.OwnAPIServer(t,
		"--kube-apiserver-arg=--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection,MutatingAdmissionPolicy",
		"--kube-apiserver-arg=--feature-gates=MutatingAdmissionPolicy=false",
		"--kube-apiserver-arg=--runtime-config=admissionregistration.k8s.io/v1/mutatingadmissionpolicies=false,admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings=false")
	w := newWorld(t, server, "older")
	claim, vol := w.claim("x"), w.volume("x", nil, corev1.VolumeAvailable)
	for _, o := range []client.Object{claim, vol} {
		if len(o.GetFinalizers()) != 0 {
			t.Fatalf("%T is born with finalizers %q, so nothing is tested here", o, o.GetFinalizers())
		}
	}
	w.start()
	for o, finalizer := range map[client.Object]string{claim: FinalizerClaim, vol: FinalizerVolume} {
		w.protected(o, finalizer)
	}
}
