//go:build e2e && nodes

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// These cases run in a cluster with three nodes, one after another: they let nodes fail. The
// temporary directory of a case is the same on all nodes, like a network file system.

// outOfServiceLimit is how long a pod may take to run elsewhere after its node was declared out of
// service. Kubernetes collects such pods every 20 s.
const outOfServiceLimit = time.Minute

// outOfService is the taint by which an administrator says that a node is off.
const outOfService = "node.kubernetes.io/out-of-service"

// onThreeNodes begins a case, and gives the names of the nodes. The first runs the control plane.
func onThreeNodes(t *testing.T, label string) (*scenario, []string) {
	t.Helper()
	return onThreeNodesWith(t, func() *scenario { return begin(t, label) })
}

// onThreeNodesWith is onThreeNodes with a function that begins the case.
func onThreeNodesWith(t *testing.T, begin func() *scenario) (*scenario, []string) {
	t.Helper()
	if !suite.machine.here() {
		t.Fatal("these cases need the cluster of hack/e2e.sh: run `make test-nodes`")
	}
	var list corev1.NodeList
	if err := suite.live.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for i := range list.Items {
		nodes = append(nodes, list.Items[i].Name)
	}
	slices.SortFunc(nodes, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	if len(nodes) != 3 {
		t.Fatalf("the cluster has the nodes %q, want three", nodes)
	}
	var s *scenario
	t.Cleanup(func() { // after the case has removed its objects
		for _, node := range nodes[1:] {
			if s == nil {
				return // it has failed to begin
			}
			if err := s.nothingLeftOn(suite.machine.on(node)); err != nil {
				t.Errorf("the case has left something behind on node %s: %v", node, err)
			}
		}
	})
	s = begin()
	return s, nodes
}

// node runs a command of tarn-cluster node.
func (s *scenario) node(command, name string) {
	s.t.Helper()
	if _, err := suite.machine.run("node", command, name); err != nil {
		s.t.Fatal(err)
	}
}

// onNode lets a pod run on one node, or on one of some.
func onNode(names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names},
			}}},
		}}}
	}
}

// stagedOn waits until the case has exactly these stages: the name of a node, or that and " ro".
func (s *scenario) stagedOn(want ...string) {
	s.t.Helper()
	s.await(fmt.Sprintf("the stages to be on %q", want), func() (bool, string) {
		var list tarn.PavStageList
		if err := suite.live.List(s.ctx, &list, client.MatchingLabels{tarn.LabelProvisioner: s.name}); err != nil {
			return false, err.Error()
		}
		var found []string
		for _, g := range list.Items {
			name := g.Spec.NodeName
			if g.Spec.ReadOnly {
				name += " ro"
			}
			found = append(found, name)
		}
		slices.Sort(found)
		return slices.Equal(found, want), fmt.Sprintf("they are on %q", found)
	})
}

// cleanNode waits until a node has no mount and no entry of a stage of the case.
func (s *scenario) cleanNode(name string) {
	s.t.Helper()
	m, ours := suite.machine.on(name), seenOf(s.name)
	s.await("node "+name+" to be clean", func() (bool, string) {
		mounts, err := m.mounts(kubeletDir)
		if err != nil {
			return false, err.Error()
		}
		paths, err := m.entries(ownDirs)
		if err != nil {
			return false, err.Error()
		}
		for _, at := range mounts {
			paths = append(paths, at.point)
		}
		paths = slices.DeleteFunc(paths, func(path string) bool { return !ours(path) })
		return len(paths) == 0, "it has " + strings.Join(paths, ", ")
	})
}

// keepsData is a script that writes 8 MiB with their checksum on a new volume and checks them on
// one with data. Then it appends numbered lines and continues where it was stopped.
const keepsData = `trap exit TERM
cd /data
if [ ! -e sum ]; then head -c 8388608 /dev/urandom > blob; sha256sum blob > sum; sync; fi
sha256sum -c sum
n=0; [ ! -e log ] || n=$(wc -l < log)
echo "$HOSTNAME from $n" >> starts
while true; do
n=$((n+1)); echo "line $n" >> log; echo "wrote $n"; touch /tmp/ready
sleep 0.1 & wait $!
done`

// readyWhenWriting makes a pod of keepsData Ready when it has checked its data.
func readyWhenWriting(pod *corev1.Pod) {
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/ready"}},
	}}
}

// writer makes a pod of keepsData on a node, and waits until it writes.
func (s *scenario) writer(name, claim string, nodes ...string) *corev1.Pod {
	s.t.Helper()
	pod := s.consumer(name, claim, keepsData, onNode(nodes...), readyWhenWriting)
	s.ready(pod)
	return pod
}

// lines reads the lines that keepsData has written to a volume's directory, and proves that none
// is missing, doubled or torn.
func (s *scenario) lines(dir string) int {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	all := strings.SplitAfter(string(text), "\n")
	all = all[:len(all)-1]
	for i, line := range all {
		if want := fmt.Sprintf("line %d\n", i+1); line != want {
			s.t.Fatalf("line %d of %s is %q, want %q", i+1, dir, line, want)
		}
	}
	return len(all)
}

// writesOn proves that the same pod continues to write to the volume's directory.
func (s *scenario) writesOn(pod *corev1.Pod, dir string) {
	s.t.Helper()
	before := s.lines(dir)
	s.await("pod "+pod.Name+" to write on", func() (bool, string) {
		now := s.lines(dir)
		return now >= before+3, fmt.Sprintf("%d lines, there were %d", now, before)
	})
	now := pod.DeepCopy()
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(pod), now); err != nil || now.UID != pod.UID {
		s.t.Fatalf("pod %s is another one: %v", pod.Name, err)
	}
	s.neverRestarted(now)
}

// unstagedOn proves that one unstaging pod has run since the last call, on a node.
func (s *scenario) unstagedOn(shelf, node string) {
	s.t.Helper()
	if text := unstaged(s.t, shelf); strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, " on "+node+"\n") {
		s.t.Errorf("the unstaging pods wrote %q, want one line of node %s", text, node)
	}
}
