package pool

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestAFillerPodGoesWhereItsVolumeIsWanted(t *testing.T) {
	nodes := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"fast"}}},
	}}}
	s := set(1, 1, func(s *tarnv1.PersistentVolumeSet) {
		s.Spec.Template.TopologyKey = "zone"
		s.Spec.Template.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: nodes}
	})
	v := waitsForConsumer(view(s))
	for _, c := range []struct {
		domain string
		want   []corev1.PreferredSchedulingTerm
	}{
		{"", nil},
		{"x", []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"x"}}},
		}}}},
	} {
		affinity := fillerPod(v, fillerClaim(v, 0, c.domain)).Spec.Affinity
		if affinity == nil || affinity.NodeAffinity == nil {
			t.Fatalf("domain %q: the pod has no node affinity", c.domain)
		}
		if got := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; !equality.Semantic.DeepEqual(got, nodes) {
			t.Errorf("domain %q: it must go to %v, want the template's %v", c.domain, got, nodes)
		}
		if got := affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("domain %q: it had better go to %v, want %v", c.domain, got, c.want)
		}
	}
}
