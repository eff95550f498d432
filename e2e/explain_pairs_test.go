//go:build e2e

package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The reason why a pod waits does not depend on the order of its claims. internal/cli/explain tests
// the other pairs.
func TestExplainTellsTheOneCauseOfAPodWithTwoTroubles(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-pairs")
	going := s.claim("going")
	s.hold(going)
	s.delete(going)
	s.claim("lacks") // its class does not exist
	and := func(claim string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "more", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
		}
	}
	for name, claims := range map[string][2]string{"one": {"going", "lacks"}, "two": {"lacks", "going"}} {
		pod := s.consumer(name, claims[0], stays, and(claims[1]))
		e := s.explains("pod", s.name+"/"+name, "claim "+s.name+"/going is being deleted, so no pod that uses it can start")
		aside := slices.IndexFunc(e.Links, func(l link) bool { return l.Object.Kind == "StorageClass" && l.State == "missing" })
		if aside < 0 || !e.Links[aside].Aside || e.Links[aside].Command != "" {
			t.Errorf("that the other claim has no class is not told aside: %+v", e.Links)
		}
		for _, l := range e.Links {
			if l.Command != "" && l.Object.Name != "going" {
				t.Errorf("the verdict is of one claim, the command %q is not", l.Command)
			}
		}
		s.remove(pod)
	}
}
