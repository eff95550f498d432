//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// deafNode makes a node without a kubelet, to which only the pods of a provisioner go. Its name
// sorts last, because other cases take the first node.
func (s *scenario) deafNode(provisioner string) *corev1.Node {
	s.t.Helper()
	name := "zz-" + s.name
	// Pods of other cases that tolerate every taint would wait there for ever. This pod exists
	// before the node and repels them.
	guard := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Spec: corev1.PodSpec{
		NodeName:   name,
		Containers: []corev1.Container{{Name: "none", Image: "busybox:1.36"}},
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, NamespaceSelector: &metav1.LabelSelector{},
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: tarn.LabelProvisioner, Operator: metav1.LabelSelectorOpNotIn, Values: []string{provisioner}},
			}},
		}}}},
	}}
	s.create(guard)
	s.t.Cleanup(func() {
		if err := client.IgnoreNotFound(suite.live.Delete(s.ctx, guard, client.GracePeriodSeconds(0))); err != nil {
			s.t.Errorf("deleting pod %s: %v", guard.Name, err)
		}
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}, Spec: corev1.NodeSpec{
		Taints: []corev1.Taint{{Key: name, Effect: corev1.TaintEffectNoSchedule}},
	}}
	s.create(node)
	s.t.Cleanup(func() { s.deleteIfThere(node) })
	room := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	bare := node.DeepCopy()
	node.Status.Capacity, node.Status.Allocatable = room, room
	if err := suite.live.Status().Patch(s.ctx, node, client.MergeFrom(bare)); err != nil {
		s.t.Fatal(err)
	}
	return node
}

// isReady writes the Ready condition that a kubelet would write.
func (s *scenario) isReady(node *corev1.Node, is corev1.ConditionStatus) {
	s.t.Helper()
	bare := node.DeepCopy()
	now := metav1.NewTime(time.Now())
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is, Reason: "Told", Message: "by an end-to-end case", LastHeartbeatTime: now, LastTransitionTime: now}}
	if err := suite.live.Status().Patch(s.ctx, node, client.MergeFrom(bare)); err != nil {
		s.t.Fatal(err)
	}
}

// onNode has a pod placed on a node, and tolerates all its taints.
func onNode(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = name
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
}

// onTheDeaf gives a section whose pods go to a node that does not respond.
func onTheDeaf(node *corev1.Node, more fields) fields {
	section := script{text: "true"}.section(more)
	spec := section["podTemplate"].(fields)["spec"].(fields)
	spec["nodeSelector"] = fields{corev1.LabelHostname: node.Name}
	spec["tolerations"] = []any{fields{"operator": "Exists"}}
	return section
}

func TestExplainSaysThatANodeIsSilentOrGone(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-node")
	node := s.deafNode(s.name + "-deaf")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	making := s.another("-deaf", fields{"volumeCreation": onTheDeaf(node, asRequested), "volumeStaging": greeting})
	claim := s.bound(s.claim("data"))
	user := s.consumer("user", claim.Name, stays, onNode(node.Name))
	empty := func(pod *corev1.Pod) {
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
	s.consumer("bare", "", stays, onNode(node.Name), empty)
	made := s.claimWith("made", ofClass(making))
	s.explainsClaim("made", "is Pending: the creation pod tarn-volumes/pav-creation-", " is starting")
	s.explains("pod", s.name+"/bare", "its containers have not started on node "+node.Name+", and no object that explain can read says why")
	s.explains("pod", s.name+"/user", "driver "+s.name+" is not registered on node "+node.Name)

	s.isReady(node, corev1.ConditionFalse)
	s.explains("pod", s.name+"/user", "is starting: its node "+node.Name+" is not ready")
	e := s.explainsClaim("made", "is Pending: the creation pod tarn-volumes/pav-creation-", " is on node "+node.Name+", which is not ready")
	if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Node" || last.Next != "when its kubelet responds again" {
		t.Errorf("the chain ends with %+v", last)
	}
	maker := &scenario{t: t, ctx: s.ctx, name: making}
	creation := &maker.stepPods(tarn.StepCreation)[0]
	s.delete(creation)
	s.delete(claim)
	s.delete(user)
	s.explainsClaim("made", "is Pending: the creation pod tarn-volumes/pav-creation-", " is being deleted, but its node "+node.Name+" is not ready")
	s.explainsClaim("data", "is Terminating: it is used by pod "+s.name+"/user, which is being deleted: its node "+node.Name+" is not ready")

	overdue := s.part(t)
	overdue.step = soon + 2*time.Minute // after two deadlines the answer asks for a person
	record := &tarn.PavVolume{ObjectMeta: named("pvc-" + string(made.UID))}
	overdue.await("the pod to be long overdue", func() (bool, string) {
		err := s.get(record)
		c := meta.FindStatusCondition(record.Status.Conditions, tarn.ConditionProvisioned)
		return err == nil && c != nil && strings.Contains(c.Message, "does not confirm it"), fmt.Sprintf("%+v (%v)", c, err)
	})
	e = s.explainsClaim("made", "is Pending: the creation pod tarn-volumes/pav-creation-", " cannot be deleted: node "+node.Name+" does not respond")
	_, force, _ := strings.Cut(e.Links[len(e.Links)-1].Message, "once the node is certainly off, delete the pod by force: ") // which only people can know
	if e.command() != "" || force == "" {
		t.Errorf("the command is %q; the chain ends with %+v", e.command(), e.Links[len(e.Links)-1])
	}
	s.does(force) // another is made in its place
	s.gone(creation)
	s.await("another creation pod", func() (bool, string) {
		again := maker.stepPods(tarn.StepCreation)
		return len(again) == 1 && again[0].UID != creation.UID && again[0].Spec.NodeName != "", fmt.Sprintf("there are %q", names(again))
	})

	if err := suite.live.Delete(s.ctx, node, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	e = s.explainsClaim("made", "is Pending: the creation pod tarn-volumes/pav-creation-", " is on node "+node.Name+", which no longer exists")
	if last := e.Links[len(e.Links)-1]; last.Object.Kind != "Node" || last.State != "missing" {
		t.Errorf("the chain ends with %+v", last)
	}
	s.explains("pod", s.name+"/bare", "its node "+node.Name+" no longer exists")
	s.explainsClaim("data", "is Terminating: it is used by pod "+s.name+"/user, which is being deleted: its node "+node.Name+" no longer exists")
	s.delete(made)
	left := maker.stepPods(tarn.StepCreation)
	var pods corev1.PodList
	if err := suite.live.List(s.ctx, &pods, client.InNamespace(s.name)); err != nil {
		t.Fatal(err)
	}
	for _, pod := range append(left, pods.Items...) { // else Kubernetes would, after about a minute
		if err := client.IgnoreNotFound(suite.live.Delete(s.ctx, &pod, client.GracePeriodSeconds(0))); err != nil {
			t.Error(err)
		}
	}
	s.gone(made)
}
