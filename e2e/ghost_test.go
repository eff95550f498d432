//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// givenUp is how long Kubernetes may take to remove the pods of a node that is gone for good. It
// checks every 20 s, and acts when a node has been deleted for 40 s.
const givenUp = 2 * time.Minute

// ghost makes a node that is Ready and has no kubelet. Only pods that tolerate its taint go there.
// Pods that tolerate everything, such as scrub pods, go there too, so it would harm other cases.
func (s *scenario) ghost() *corev1.Node {
	s.t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{corev1.LabelHostname: s.name}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: s.name, Effect: corev1.TaintEffectNoSchedule}}},
	}
	s.create(node)
	s.t.Cleanup(func() { s.deleteIfThere(&corev1.Node{ObjectMeta: named(node.Name)}) })
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10")}
	s.said(node, func() {
		node.Status.Capacity, node.Status.Allocatable = room, room
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}}
	})
	// A new node is tainted as not ready until Kubernetes has seen that it is Ready.
	s.nodeBecomes(node.Name, "free for who tolerates it", func(n *corev1.Node) bool { return len(n.Spec.Taints) == 1 })
	s.isKnown(node)
	return node
}

// isKnown waits until the scheduler has seen that a ghost accepts pods, by a pod that can go
// nowhere else.
func (s *scenario) isKnown(ghost *corev1.Node) {
	s.t.Helper()
	witness := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "witness"},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: ghost.Name},
			Tolerations:  []corev1.Toleration{{Key: s.name, Operator: corev1.TolerationOpExists}},
			Containers:   []corev1.Container{{Name: "none", Image: "busybox:1.36"}},
		},
	}
	s.create(witness)
	s.await("a pod to be on node "+ghost.Name, func() (bool, string) {
		err := s.get(witness)
		return err == nil && witness.Spec.NodeName == ghost.Name, fmt.Sprintf("it is on %q (%v)", witness.Spec.NodeName, err)
	})
	if err := suite.live.Delete(s.ctx, witness, client.GracePeriodSeconds(0)); err != nil {
		s.t.Fatal(err)
	}
}

// said writes the status of a node as its kubelet would.
func (s *scenario) said(node *corev1.Node, change func()) {
	s.t.Helper()
	old := node.DeepCopy()
	change()
	if err := suite.live.Status().Patch(s.ctx, node, client.StrategicMergeFrom(old)); err != nil {
		s.t.Fatal(err)
	}
}

// prefers sends a section's pod to a ghost as long as it exists.
func (s *scenario) prefers(section fields, ghost *corev1.Node) fields {
	podSpec(section)["tolerations"] = []any{fields{"key": s.name, "operator": "Exists", "effect": "NoSchedule"}}
	podSpec(section)["affinity"] = fields{"nodeAffinity": fields{"preferredDuringSchedulingIgnoredDuringExecution": []any{fields{
		"weight": int64(100), "preference": fields{"matchExpressions": []any{fields{"key": corev1.LabelHostname, "operator": "In", "values": []any{ghost.Name}}}},
	}}}}
	return section
}

// aCreationIsRepeatedElsewhere when the machine of the creation pod's node is gone. Only time is
// lost.
func aCreationIsRepeatedElsewhere(t *testing.T) {
	for _, c := range []struct {
		name, label string
		vanish      func(s *scenario, node *corev1.Node)
	}{
		{"is deleted", "deleted", func(s *scenario, node *corev1.Node) { s.delete(node) }},
		{"is declared out of service", "out", func(s *scenario, node *corev1.Node) {
			s.said(node, func() { node.Status.Conditions[0].Status = corev1.ConditionFalse })
			s.kubectl("cordon", node.Name)
			s.kubectl("taint", "node", node.Name, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "ghost-"+c.label)
			node := s.ghost()
			s.create(s.provisioner(fields{
				"volumeCreation": s.prefers(script{text: "true"}.section(asRequested), node), "volumeDeletion": script{text: "true"}.section(nil), "volumeStaging": greeting,
			}))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.claim("data")
			var first corev1.Pod
			s.await("a creation pod on the node", func() (bool, string) {
				pods := s.stepPods(tarn.StepCreation)
				if len(pods) == 0 {
					return false, "there is none"
				}
				first = pods[0]
				return first.Spec.NodeName == node.Name, "it is on " + first.Spec.NodeName
			})

			began := time.Now()
			c.vanish(s, node)
			s.step = soon + givenUp
			s.gone(&first)
			t.Logf("the pod is gone %s after its node", time.Since(began).Round(time.Second))
			bound := s.bound(claim)
			t.Logf("the claim is Bound %s after the node was gone", time.Since(began).Round(time.Second))
			var volumes corev1.PersistentVolumeList
			if err := suite.live.List(s.ctx, &volumes); err != nil {
				t.Fatal(err)
			}
			for _, v := range volumes.Items {
				if v.Spec.CSI != nil && v.Spec.CSI.Driver == s.name && v.Name != bound.Spec.VolumeName {
					t.Errorf("there is volume %s too, want %s alone", v.Name, bound.Spec.VolumeName)
				}
			}
			s.ran(tarn.StepCreation, 2) // the lost one, and its replacement
			pod := s.consumer("reader", claim.Name, "grep -x hello /data/greeting")
			s.succeeded(pod)
			s.remove(pod)
			s.remove(claim)
		})
	}
}
