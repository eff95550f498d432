package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// SelectsNode reports whether one term of a node selector matches a node. An empty or invalid term
// matches none, as in the scheduler.
func SelectsNode(s *corev1.NodeSelector, node *corev1.Node) bool {
	if s == nil {
		return true
	}
	fields := labels.Set{"metadata.name": node.Name}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) > 0 &&
			allMatch(term.MatchExpressions, labels.Set(node.Labels)) && allMatch(term.MatchFields, fields)
	})
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

func allMatch(requirements []corev1.NodeSelectorRequirement, of labels.Set) bool {
	return !slices.ContainsFunc(requirements, func(one corev1.NodeSelectorRequirement) bool {
		r, err := labels.NewRequirement(one.Key, operators[one.Operator], one.Values)
		return err != nil || !r.Matches(of)
	})
}
