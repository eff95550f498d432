package podend

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// endsPods says why the kubelet of a node may be ending pods: it evicts them under pressure,
// and in a graceful shutdown it is not ready any more. Empty where nothing shows that.
//
// A Node shows a pressure up to ten seconds after the kubelet has felt it, so the first pod
// that is evicted at once comes before; and those that the kubelet ends in favour of a static
// one, or for more storage than their own limit, never show there.
func endsPods(node *corev1.Node) string {
	ready := false
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure:
			if c.Status == corev1.ConditionTrue {
				return fmt.Sprintf("%s of node %s", c.Type, node.Name)
			}
		case corev1.NodeReady:
			ready = c.Status == corev1.ConditionTrue
		}
	}
	if !ready {
		return fmt.Sprintf("node %s is not ready", node.Name)
	}
	return ""
}
