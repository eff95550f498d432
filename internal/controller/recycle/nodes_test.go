package recycle

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestScrubPodsGoToNoNodeThatIsNotWellUnlessTheDataIsThere(t *testing.T) {
	node := func(name string, keys ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, key := range keys {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		return n
	}
	c := fake.NewClientBuilder().WithObjects(
		node("gpu", "example.com/gpu"), node("db", "example.com/db", "example.com/gpu"),
		node("cordoned", corev1.TaintNodeUnschedulable), node("dead", corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable),
		node("young", "node.cloudprovider.kubernetes.io/uninitialized"),
	).Build()
	anywhere := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	well := []corev1.Toleration{{Key: "example.com/db", Operator: corev1.TolerationOpExists}, {Key: "example.com/gpu", Operator: corev1.TolerationOpExists}}
	by := func(key string) []corev1.NodeSelectorTerm {
		return []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{"x"}}}}}
	}
	for name, row := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  []corev1.Toleration
	}{
		"a volume that any node reaches":    {nil, well},
		"one that the nodes of a zone do":   {by(corev1.LabelTopologyZone), well},
		"one that is on a node":             {by(corev1.LabelHostname), anywhere},
		"one that is on a node by its name": {[]corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name"}}}}, anywhere},
	} {
		v := view(pointing, claim("scrub-uid"))
		if row.terms != nil {
			v.Volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: row.terms}}
		}
		if err := (&reconciler{client: c}).gatherTaints(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if got := scrubPod(v, tarnv1.RecycleFiles).Spec.Tolerations; !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}
