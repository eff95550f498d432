package recycle

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// A node has Tarn's image because it pulled it with these Secrets. A kubelet may demand them of
// every pod.
func TestScrubPodsNameTheSecretsOfTheirImage(t *testing.T) {
	v := view(pointing, claim("scrub-uid"))
	v.PullSecrets = []string{"mine", "yours"}
	want := []corev1.LocalObjectReference{{Name: "mine"}, {Name: "yours"}}
	for what, pod := range map[string]*corev1.Pod{
		"scrub": scrubPod(v, tarnv1.RecycleFiles), "check": checkPod(v, tarnv1.RecycleCertificate{Method: tarnv1.RecycleFiles}),
	} {
		if got := pod.Spec.ImagePullSecrets; !slices.Equal(got, want) {
			t.Errorf("the %s pod is pulled with %v, want %v", what, got, want)
		}
	}
}
