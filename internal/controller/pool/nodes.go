package pool

import (
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// openDomains returns the sorted domains that have a node on which filler pods can run. A
// domain without such a node gets no spares: their pods would run elsewhere, and the open
// domains would become uneven. closed are the domains that are closed only for now. If no domain
// is open, these count as open.
func openDomains(t *tarnv1.PersistentVolumeSetTemplate, class *storagev1.StorageClass, nodes []corev1.Node) (open, closed []string) {
	for i := range nodes {
		domain, has := nodes[i].Labels[t.TopologyKey]
		if !has {
			continue
		}
		switch opens(t, class, &nodes[i]) {
		case now:
			open = append(open, domain)
		case soon:
			closed = append(closed, domain)
		}
	}
	closed = slices.DeleteFunc(closed, func(domain string) bool { return slices.Contains(open, domain) })
	for _, domains := range []*[]string{&open, &closed} {
		slices.Sort(*domains)
		*domains = slices.Compact(*domains)
	}
	if len(open) == 0 {
		open = closed
	}
	return open, closed
}

// lostVolumes names the volumes that no node can use: no Node matches their node affinity. Most
// are of one node each, which is looked up by its host name.
func lostVolumes(volumes []corev1.PersistentVolume, nodes []corev1.Node) map[string]bool {
	hosts, known, lost := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range nodes {
		hosts[nodes[i].Labels[corev1.LabelHostname]] = true
	}
	for i := range volumes {
		affinity := volumes[i].Spec.NodeAffinity
		if affinity == nil || affinity.Required == nil {
			continue
		}
		key := affinity.Required.String()
		there, seen := known[key]
		if host := volume.OnlyHost(affinity.Required); host != "" {
			there = hosts[host]
		} else if !seen {
			there = slices.ContainsFunc(nodes, func(node corev1.Node) bool { return volume.SelectsNode(affinity.Required, &node) })
			known[key] = there
		}
		if !there {
			lost[volumes[i].Name] = true
		}
	}
	return lost
}

// opening is when a filler pod can run on a node.
type opening int

const (
	never opening = iota
	soon
	now
)

// opens says when a filler pod can run on a node, as far as the template and the class decide
// that.
func opens(t *tarnv1.PersistentVolumeSetTemplate, class *storagev1.StorageClass, node *corev1.Node) opening {
	switch {
	case node.DeletionTimestamp != nil, t.Spec.NodeAffinity != nil && !volume.SelectsNode(t.Spec.NodeAffinity.Required, node),
		class != nil && !volume.Allows(class.AllowedTopologies, node.Labels):
		return never
	}
	taints, when := slices.Clone(node.Spec.Taints), now
	if node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for i := range taints {
		switch {
		case tolerates(t, &taints[i]):
		case strings.HasPrefix(taints[i].Key, conditionTaints) && taints[i].Key != corev1.TaintNodeUnschedulable:
			when = soon
		default:
			return never
		}
	}
	return when
}

// conditionTaints is the prefix of the taints by which Kubernetes marks a node that is not
// ready or short of something. Kubernetes removes them again.
const conditionTaints = "node.kubernetes.io/"

// tolerates reports whether a taint lets filler pods onto its node.
func tolerates(t *tarnv1.PersistentVolumeSetTemplate, taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectPreferNoSchedule ||
		slices.ContainsFunc(t.Tolerations, func(one corev1.Toleration) bool { return one.ToleratesTaint(logr.Discard(), taint, true) })
}
