package volume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// OnlyHost returns the host name of the one node that a selector selects by nothing else. It is empty
// for any other selector.
func OnlyHost(s *corev1.NodeSelector) string {
	if len(s.NodeSelectorTerms) != 1 || len(s.NodeSelectorTerms[0].MatchFields) > 0 || len(s.NodeSelectorTerms[0].MatchExpressions) != 1 {
		return ""
	}
	if one := s.NodeSelectorTerms[0].MatchExpressions[0]; one.Key == corev1.LabelHostname && one.Operator == corev1.NodeSelectorOpIn && len(one.Values) == 1 {
		return one.Values[0]
	}
	return ""
}

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
