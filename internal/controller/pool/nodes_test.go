package pool

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

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
		name         string
		nodes        []corev1.Node
		want, closed []string
	}{
		{"each once", []corev1.Node{node("y", ""), node("x", ""), node("y", "")}, []string{"x", "y"}, nil},
		{"not one that is closed", []corev1.Node{node("x", "for-others"), node("y", ""), node("z", corev1.TaintNodeNotReady)}, []string{"y"}, []string{"z"}},
		{"one with a node that is open", []corev1.Node{node("x", "for-others"), node("x", ""), node("x", corev1.TaintNodeNotReady)}, []string{"x"}, nil},
		{"those to come where none is open", []corev1.Node{node("x", "for-others"), node("y", corev1.TaintNodeNotReady), node("z", corev1.TaintNodeNotReady)}, []string{"y", "z"}, []string{"y", "z"}},
		{"none at all", []corev1.Node{node("x", "for-others")}, nil, nil},
		{"none of a node without the label", []corev1.Node{{}}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, closed := openDomains(&s.Spec.Template, nil, c.nodes); !slices.Equal(got, c.want) || !slices.Equal(closed, c.closed) {
				t.Errorf("got %q, and closed %q; want %q and %q", got, closed, c.want, c.closed)
			}
		})
	}
}

func TestAVolumeIsLostWhenNoNodeMatchesItsAffinity(t *testing.T) {
	in := func(key string, values ...string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}},
		}}}
	}
	nodes := []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelHostname: "h1", "zone": "x"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{corev1.LabelHostname: "h2", "zone": "y"}}},
	}
	either := in(corev1.LabelHostname, "h3")
	either.Required.NodeSelectorTerms = append(either.Required.NodeSelectorTerms, in("zone", "y").Required.NodeSelectorTerms...)
	for _, c := range []struct {
		name     string
		affinity *corev1.VolumeNodeAffinity
		want     bool
	}{
		{"of no node", nil, false},
		{"without a condition", &corev1.VolumeNodeAffinity{}, false},
		{"of a node that is there", in(corev1.LabelHostname, "h2"), false},
		{"of one that is gone", in(corev1.LabelHostname, "h3"), true},
		{"of one of two", in(corev1.LabelHostname, "h3", "h1"), false},
		{"of a zone", in("zone", "x"), false},
		{"of a zone without nodes", in("zone", "z"), true},
		{"of either", either, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			volumes := []corev1.PersistentVolume{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
			for i := range volumes {
				volumes[i].Spec.NodeAffinity = c.affinity
			}
			if lost := lostVolumes(volumes, nodes); lost["a"] != c.want || lost["b"] != c.want {
				t.Errorf("got %v, want %t for both", lost, c.want)
			}
		})
	}
}

func TestANodesHeartbeatsReachNoPool(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "x"}}}
		change(n)
		return n
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		want   bool
	}{
		{"a heartbeat", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: anHourAgo}}
		}, false},
		{"a taint", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable}} }, true},
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		{"another zone", func(n *corev1.Node) { n.Labels = map[string]string{"zone": "y"} }, true},
		{"to be deleted", func(n *corev1.Node) { n.DeletionTimestamp = &anHourAgo }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := opensOrCloses().Update(event.UpdateEvent{ObjectOld: node(func(*corev1.Node) {}), ObjectNew: node(c.change)}); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}
