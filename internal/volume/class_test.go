package volume_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/volume"
)

func TestAClassAllowsANodeThatHasEveryLabelOfOneTerm(t *testing.T) {
	needs := func(key string, values ...string) corev1.TopologySelectorLabelRequirement {
		return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
	}
	term := func(needs ...corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: needs}
	}
	node := map[string]string{"zone": "a", "disk": "fast"}
	for _, c := range []struct {
		name  string
		terms []corev1.TopologySelectorTerm
		want  bool
	}{
		{"it says nothing", nil, true},
		{"one value is that of the node", []corev1.TopologySelectorTerm{term(needs("zone", "b", "a"))}, true},
		{"no value is", []corev1.TopologySelectorTerm{term(needs("zone", "b"))}, false},
		{"the node lacks the label", []corev1.TopologySelectorTerm{term(needs("rack", "1"))}, false},
		{"the node lacks the label, and a value is empty", []corev1.TopologySelectorTerm{term(needs("rack", ""))}, false},
		{"one requirement of two is met", []corev1.TopologySelectorTerm{term(needs("zone", "a"), needs("disk", "slow"))}, false},
		{"both are", []corev1.TopologySelectorTerm{term(needs("zone", "a"), needs("disk", "fast"))}, true},
		{"one term of two holds", []corev1.TopologySelectorTerm{term(needs("zone", "b")), term(needs("zone", "a"))}, true},
	} {
		if got := volume.Allows(c.terms, node); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
