//go:build e2e && nodes

package e2e

import (
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// continues proves that a pod of keepsData runs on a node, that its data are whole, and that its
// lines continue.
func (s *scenario) continues(pod *corev1.Pod, node string) {
	s.t.Helper()
	if pod.Spec.NodeName != node {
		s.t.Errorf("pod %s runs on node %s, want %s", pod.Name, pod.Spec.NodeName, node)
	}
	if text := s.prints(pod, "wrote"); !strings.Contains(text, "blob: OK") || strings.Contains(text, "wrote 1\n") {
		s.t.Errorf("pod %s has not found its data, and says:\n%s", pod.Name, text)
	}
}

func TestOnThreeNodesLocalVolumesOfTwoCutNodesServeTheirPodsAgain(t *testing.T) {
	s, nodes := onThreeNodesWith(t, func() *scenario { return ofXFS(t) })
	both := func(command string) {
		t.Helper()
		var wait sync.WaitGroup
		errs := make([]error, 2)
		for i, node := range nodes[1:] {
			wait.Go(func() { _, errs[i] = suite.machine.run("node", command, node) })
		}
		wait.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	s.statefulSet("replaced", onNode(nodes[1]), readyWhenWriting)
	s.statefulSet("kept", onNode(nodes[2]), readyWhenWriting)
	replaced := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "replaced-0", Namespace: s.name}}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kept-0", Namespace: s.name}}
	before := map[*corev1.Pod]types.UID{}
	for _, pod := range []*corev1.Pod{replaced, kept} {
		s.ready(pod)
		s.prints(pod, "wrote 5")
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
		before[pod] = pod.UID
	}
	claim := s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-replaced-0", Namespace: s.name}})

	both("cut")
	off, tainted := true, false
	start := func() {
		if off {
			off = false
			both("start")
		}
	}
	defer func() {
		start()
		if tainted {
			s.kubectl("taint", "node", nodes[1], corev1.TaintNodeOutOfService+"-")
		}
	}()
	s.nodeBecomes(nodes[1], "given up", func(node *corev1.Node) bool { return !isReadyNode(node) })
	s.kubectl("taint", "node", nodes[1], corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	tainted = true
	s.await("a new pod to wait for its node", func() (bool, string) {
		if err := s.get(replaced); err != nil {
			return false, err.Error()
		}
		return replaced.UID != before[replaced], "it is the former one"
	})
	home := "its volume " + claim.Spec.VolumeName + " is on node " + nodes[1] + " alone, which is "
	s.explains("pod", s.name+"/"+replaced.Name, home+"not ready")
	start()
	s.does(s.explains("pod", s.name+"/"+replaced.Name, home+"marked as out of service").command())
	tainted = false
	s.ready(replaced)
	// Of a node that is cut for a short time, Kubernetes keeps the pods, and the kubelet restarts their containers.
	s.await("the other pod to run again", func() (bool, string) {
		err := s.get(kept)
		return err == nil && isReadyPod(kept) && kept.Status.ContainerStatuses[0].RestartCount > 0, "it is not restarted"
	})
	if err := errors.Join(s.get(replaced), s.get(kept)); err != nil {
		t.Fatal(err)
	}
	s.continues(replaced, nodes[1])
	s.continues(kept, nodes[2])
	if kept.UID != before[kept] {
		t.Error("pod kept-0 is another one")
	}
	s.stagedOn(nodes[1], nodes[2])
	if err := errors.Join(auditedOn(suite.machine.on(nodes[1]), s.name), auditedOn(suite.machine.on(nodes[2]), s.name)); err != nil {
		t.Error(err)
	}
	if seen := suite.news.of(s.name); seen.pods[tarn.StepCreation] != 2 || len(s.records()) != 2 {
		t.Errorf("there were %d creation pods, and there are %d volumes, want 2 and 2", seen.pods[tarn.StepCreation], len(s.records()))
	}
}

func TestOnThreeNodesTheVolumeOfANodeWithANewNameIsKeptUntilItIsGivenUp(t *testing.T) {
	const former, renamed = "e2e-former", "e2e-renamed"
	s, _ := onThreeNodesWith(t, func() *scenario { return ofXFS(t) })
	s.node("add", former)
	there := former
	t.Cleanup(func() { s.node("remove", there) })
	s.nodeBecomes(former, "ready", isReadyNode)
	claim := s.claimWith("data", asksModes(corev1.ReadWriteOnce), func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size("300Mi") })
	pod := s.writer("writer", claim.Name, former)
	name := s.bound(claim).Spec.VolumeName
	s.remove(pod)
	s.stagedOn()
	s.node("remove", former)
	there = renamed
	s.node("add", renamed)

	late := s.consumer("late", claim.Name, keepsData)
	s.explains("pod", s.name+"/late", "its volume "+name+" is on node "+former+" alone, which no longer exists")
	if err := errors.Join(audited(s.name), auditedOn(suite.machine.on(renamed), s.name)); err != nil {
		t.Error(err)
	}
	s.remove(late)
	s.delete(claim)
	e := s.explains("volume", name, former)
	if want := "kubectl delete pavvolume " + name; e.command() != want {
		t.Fatalf("explain gives the command %q, want %q", e.command(), want)
	}
	if len(s.records()) != 1 {
		t.Error("the record of a volume that nobody has given up is gone")
	}
	s.does(e.command())
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(name)})
	s.gone(&tarn.PavVolume{ObjectMeta: named(name)})
}
