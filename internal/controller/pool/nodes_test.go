package pool

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestASpareIsDealtOnlyWhereAFillerPodMayGo(t *testing.T) {
	tainted := func(effect corev1.TaintEffect) testkit.With[*corev1.Node] {
		return func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "for", Value: "storage", Effect: effect})
		}
	}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	tolerating := func(one corev1.Toleration) testkit.With[*tarnv1.PersistentVolumeSet] {
		return func(s *tarnv1.PersistentVolumeSet) {
			s.Spec.Template.Tolerations = append(s.Spec.Template.Tolerations, one)
		}
	}
	forStorage := tolerating(corev1.Toleration{Key: "for", Operator: corev1.TolerationOpEqual, Value: "storage"})
	on := func(terms ...corev1.NodeSelectorTerm) testkit.With[*tarnv1.PersistentVolumeSet] {
		return func(s *tarnv1.PersistentVolumeSet) {
			s.Spec.Template.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
		}
	}
	labelled := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	called := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
	}
	classIn := func(zones ...string) testkit.With[*storagev1.StorageClass] {
		return func(c *storagev1.StorageClass) {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: zones}}}}
		}
	}
	anySet, anyNode, anyClass := func(*tarnv1.PersistentVolumeSet) {}, func(*corev1.Node) {}, func(*storagev1.StorageClass) {}
	for _, c := range []struct {
		name  string
		set   testkit.With[*tarnv1.PersistentVolumeSet]
		node  testkit.With[*corev1.Node]
		class testkit.With[*storagev1.StorageClass]
		want  opening
	}{
		{"a plain node", anySet, anyNode, anyClass, now},
		{"one that goes", anySet, func(n *corev1.Node) { n.DeletionTimestamp = &anHourAgo }, anyClass, never},
		{"a tainted one", anySet, tainted(corev1.TaintEffectNoSchedule), anyClass, never},
		{"one whose taint evicts", anySet, tainted(corev1.TaintEffectNoExecute), anyClass, never},
		{"one that had better be left", anySet, tainted(corev1.TaintEffectPreferNoSchedule), anyClass, now},
		{"a tainted one that is tolerated", forStorage, tainted(corev1.TaintEffectNoSchedule), anyClass, now},
		{"one with another taint too", forStorage, func(n *corev1.Node) {
			tainted(corev1.TaintEffectNoSchedule)(n)
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
		}, anyClass, soon},
		{"one that is not ready, and is for others", anySet, func(n *corev1.Node) {
			tainted(corev1.TaintEffectNoSchedule)(n)
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
		}, anyClass, never},
		{"one that is cordoned", forStorage, cordoned, anyClass, never},
		{"one that is cordoned, which is tolerated", tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}), cordoned, anyClass, now},
		{"one that the template selects", on(labelled("zone", corev1.NodeSelectorOpIn, "x", "y")), anyNode, anyClass, now},
		{"one that it does not", on(labelled("zone", corev1.NodeSelectorOpNotIn, "x", "y")), anyNode, anyClass, never},
		{"one that its second term selects", on(labelled("gpu", corev1.NodeSelectorOpExists), labelled("size", corev1.NodeSelectorOpGt, "3")), anyNode, anyClass, now},
		{"one that it names", on(called("n1")), anyNode, anyClass, now},
		{"another than it names", on(called("n2")), anyNode, anyClass, never},
		{"a term of nothing", on(corev1.NodeSelectorTerm{}), anyNode, anyClass, never},
		{"one where its class allows volumes", anySet, anyNode, classIn("w", "x"), now},
		{"one where it does not", anySet, anyNode, classIn("w"), never},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "x", "size": "4"}}}
			c.node(node)
			if got := opens(&set(1, 1, c.set).Spec.Template, testkit.Class(testClass, c.class), node); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestSparesAreDealtOverTheDomainsThatAreOpen(t *testing.T) {
	s := set(1, 1, func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.TopologyKey = "zone" })
	node := func(zone, taint string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": zone}}}
		if taint != "" {
			n.Spec.Taints = []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}
		}
		return n
	}
	for _, c := range []struct {
		name  string
		nodes []corev1.Node
		want  []string
	}{
		{"each once", []corev1.Node{node("y", ""), node("x", ""), node("y", "")}, []string{"x", "y"}},
		{"not one that is closed", []corev1.Node{node("x", "for-others"), node("y", ""), node("z", corev1.TaintNodeNotReady)}, []string{"y"}},
		{"one with a node that is open", []corev1.Node{node("x", "for-others"), node("x", "")}, []string{"x"}},
		{"those to come where none is open", []corev1.Node{node("x", "for-others"), node("y", corev1.TaintNodeNotReady), node("z", corev1.TaintNodeNotReady)}, []string{"y", "z"}},
		{"none at all", []corev1.Node{node("x", "for-others")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := openDomains(&s.Spec.Template, nil, c.nodes); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
