package recycle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// docs/operations/security.md says what these pods may do; change it with this test.
func TestScrubPodsMayDoNoMoreThanIsSaid(t *testing.T) {
	usual := []corev1.Capability{"DAC_OVERRIDE", "FOWNER", "LINUX_IMMUTABLE"}
	for _, c := range []struct {
		name     string
		method   tarnv1.RecycleMethod
		device   bool
		want     []corev1.Capability
		escalate *bool
	}{
		{"files", tarnv1.RecycleFiles, false, usual, ptr.To(false)},
		{"zeros in a file system", tarnv1.RecycleZero, false, usual, ptr.To(false)},
		{"zeros on a device", tarnv1.RecycleZero, true, usual, ptr.To(false)},
		{"discarding in a file system", tarnv1.RecycleDiscard, false, append(usual[:3:3], "SYS_ADMIN"), nil},
		{"discarding on a device", tarnv1.RecycleDiscard, true, usual, ptr.To(false)},
	} {
		changes := []viewWith{claim("scrub-uid")}
		if c.device {
			changes = append(changes, block)
		}
		pod := scrubPod(view(changes...), c.method)
		want := &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](0), AllowPrivilegeEscalation: c.escalate, ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: c.want},
		}
		if diff := cmp.Diff(want, pod.Spec.Containers[0].SecurityContext); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		wantPod := &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
		if diff := cmp.Diff(wantPod, pod.Spec.SecurityContext); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if s := pod.Spec; len(s.Containers) != 1 || len(s.InitContainers) > 0 || s.HostNetwork || s.HostPID || s.HostIPC || ptr.Deref(s.AutomountServiceAccountToken, true) || len(s.Volumes) != 1 || s.Volumes[0].PersistentVolumeClaim == nil {
			t.Errorf("%s: the pod has more than its volume: %+v", c.name, s)
		}
	}
}
