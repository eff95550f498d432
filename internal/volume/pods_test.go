package volume_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tarn.dev/tarn/internal/volume"
)

func named(claim string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
}

func podOf(name string, sources ...corev1.VolumeSource) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for i, s := range sources {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: string(rune('a' + i)), VolumeSource: s})
	}
	return pod
}

func TestClaimsOfPodNamesEachClaimOnce(t *testing.T) {
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"a pod without volumes", podOf("p"), nil},
		{"a volume that is no claim", podOf("p", empty), nil},
		{"a claim by its name", podOf("p", named("x")), []string{"x"}},
		{"an ephemeral volume by pod and volume", podOf("p", empty, ephemeral), []string{"p-b"}},
		{"in the order of the volumes", podOf("p", named("z"), ephemeral, named("a")), []string{"z", "p-b", "a"}},
		{"twice the same claim", podOf("p", named("x"), named("x")), []string{"x"}},
		{"a claim that is named as an ephemeral one is computed", podOf("p", named("p-b"), ephemeral), []string{"p-b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := volume.ClaimsOfPod(c.pod); !slices.Equal(got, c.want) {
				t.Errorf("ClaimsOfPod = %q, want %q", got, c.want)
			}
		})
	}
}
