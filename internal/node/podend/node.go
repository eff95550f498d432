package podend

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// endsPods says why the kubelet of a node may be ending pods. It evicts pods under pressure, and in
// a graceful shutdown the Node is not ready. It is empty if the Node shows no such reason.
//
// A Node shows a pressure up to ten seconds after the kubelet has detected it, so the first
// eviction may come earlier. A Node never shows pods that the kubelet ends in favour of a static
// pod, or for exceeding their own storage limit.
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
