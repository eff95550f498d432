package steppod

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// nodesOf says where the pods of a record may run: on the node that has the volume, or else on the
// nodes the class allows, or else anywhere.
func nodesOf(p *pavv1.PavProvisioner, record *tarnv1.PavVolume) []corev1.NodeSelectorTerm {
	// The record decides, even if the provisioner's topology has changed: the storage is on that
	// node.
	if name := record.Status.NodeName; name != "" {
		return onNode(name)
	}
	if p.Spec.Topology != pavv1.TopologyNode {
		return nil
	}
	class := &storagev1.StorageClass{}
	if err := json.Unmarshal(record.Spec.ClassSnapshot.Raw, class); err != nil {
		return nil // RecordVars has reported it
	}
	var terms []corev1.NodeSelectorTerm
	for _, allowed := range class.AllowedTopologies {
		var term corev1.NodeSelectorTerm
		for _, e := range allowed.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values,
			})
		}
		terms = append(terms, term)
	}
	return terms
}

// onNode matches only that node.
func onNode(name string) []corev1.NodeSelectorTerm {
	return []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
		Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name},
	}}}}
}

// requireNodes restricts a pod to nodes that match one of the terms. The requirements of its
// template remain: each of them is combined with each term.
func requireNodes(pod *corev1.Pod, terms []corev1.NodeSelectorTerm) {
	if len(terms) == 0 {
		return
	}
	affinity := &corev1.Affinity{}
	if pod.Spec.Affinity != nil {
		affinity = pod.Spec.Affinity
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	own := []corev1.NodeSelectorTerm{{}}
	if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		own = required.NodeSelectorTerms
	}
	var both []corev1.NodeSelectorTerm
	for _, a := range own {
		for _, b := range terms {
			both = append(both, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(a.MatchExpressions, b.MatchExpressions),
				MatchFields:      slices.Concat(a.MatchFields, b.MatchFields),
			})
		}
	}
	affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: both}
	pod.Spec.Affinity = affinity
	if isOneNode(terms) {
		tolerateNode(pod)
	}
}

// isOneNode says whether the terms match a single node by its name.
func isOneNode(terms []corev1.NodeSelectorTerm) bool {
	return len(terms) == 1 && len(terms[0].MatchFields) > 0
}

// tolerateNode lets a pod run on the one node that has its storage, whatever its taints. No other
// node can do the work, and the consumer tolerates the taints. Under a taint that evicts, the pod
// stays as long as Kubernetes lets every pod stay on a dead node. The author's tolerations come
// first, because Kubernetes applies the first that matches a taint.
func tolerateNode(pod *corev1.Pod) {
	pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations),
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
	)
}
