package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Allows says whether a node with these labels matches one of the terms of a class's
// allowedTopologies. No terms allow every node.
func Allows(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, has := labels[e.Key]
			return !has || !slices.Contains(e.Values, value)
		})
	})
}
