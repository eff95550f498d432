//go:build e2e && nodes

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// These cases run in a cluster with three nodes, one after another: they let nodes fail. The
// temporary directory of a case is the same on all nodes, like a network file system.

// outOfServiceLimit is how long a pod may take to run elsewhere after its node was declared out of
// service. Kubernetes collects such pods every 20 s.
const outOfServiceLimit = time.Minute

// onThreeNodes begins a case, and gives the names of the nodes. The first runs the control plane.
func onThreeNodes(t *testing.T, label string) (*scenario, []string) {
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
			if err := s.nothingLeftOn(suite.machine.on(node)); err != nil {
				t.Errorf("the case has left something behind on node %s: %v", node, err)
			}
		}
	})
	s = begin(t, label)
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

// stages gives the stages of the case, by node.
func (s *scenario) stages() map[string][]tarn.PavStage {
	s.t.Helper()
	var list tarn.PavStageList
	if err := suite.live.List(s.ctx, &list, client.MatchingLabels{tarn.LabelProvisioner: s.name}); err != nil {
		s.t.Fatal(err)
	}
	found := map[string][]tarn.PavStage{}
	for _, g := range list.Items {
		found[g.Spec.NodeName] = append(found[g.Spec.NodeName], g)
	}
	return found
}

// stagedOn waits until the case has one stage on each of some nodes, and none on others.
func (s *scenario) stagedOn(nodes ...string) {
	s.t.Helper()
	s.await(fmt.Sprintf("the stages to be on %q", nodes), func() (bool, string) {
		found := s.stages()
		ok := len(found) == len(nodes)
		var state []string
		for node, stages := range found {
			ok = ok && len(stages) == 1 && slices.Contains(nodes, node)
			state = append(state, fmt.Sprintf("%d on %s", len(stages), node))
		}
		return ok, "there are " + strings.Join(state, ", ")
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

// statefulSet makes a StatefulSet of one pod with a volume of the case's class.
func (s *scenario) statefulSet(edits ...func(*corev1.Pod)) *appsv1.StatefulSet {
	s.t.Helper()
	labels := map[string]string{"app": "db"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-ec", keepsData},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		},
	}
	for _, edit := range edits {
		edit(pod)
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: s.name}, Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size("16Mi")},
		}}},
	}}
	s.create(set)
	// Its pods must not return while the case removes them.
	s.t.Cleanup(func() { s.deleteIfThere(set) })
	return set
}

func TestOnThreeNodesAPodOfACutNodeRunsElsewhereWithItsData(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "cut")
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	s.statefulSet(onNode(nodes[1:]...), readyWhenWriting)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: s.name}}
	s.ready(pod)
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-db-0", Namespace: s.name}})
	data := filepath.Join(shelf, entriesOf(t, shelf)[0])
	lost := pod.Spec.NodeName
	s.stagedOn(lost)
	s.writesOn(pod, data)

	s.node("cut", lost)
	written := s.lines(data)
	const outOfService = "node.kubernetes.io/out-of-service"
	back := func() {
		s.node("start", lost)
		s.kubectl("taint", "node", lost, outOfService+"-")
	}
	returned := false
	defer func() {
		if !returned {
			back()
		}
	}()
	s.nodeBecomes(lost, "given up", func(node *corev1.Node) bool { return !isReadyNode(node) })
	s.kubectl("taint", "node", lost, outOfService+"=nodeshutdown:NoExecute")
	tainted := time.Now()
	now := &corev1.Pod{}
	if !s.wait("the pod to run elsewhere", outOfServiceLimit, func() (bool, string) {
		now = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: s.name}}
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		return now.UID != pod.UID && isReadyPod(now), fmt.Sprintf("pod %s is %s on node %s", now.UID, now.Status.Phase, now.Spec.NodeName)
	}) {
		t.FailNow()
	}
	t.Logf("the pod runs elsewhere %.1f s after the taint", time.Since(tainted).Seconds())
	if now.Spec.NodeName == lost {
		t.Errorf("the pod runs on the node that is off")
	}
	if text := s.printed(now); !strings.Contains(text, "blob: OK") {
		t.Errorf("the pod has not found its data, and says:\n%s", text)
	}
	if n := s.lines(data); n <= written {
		t.Errorf("the volume has %d lines, want more than the %d that were written before", n, written)
	}

	back()
	returned = true
	s.nodeBecomes(lost, "ready again", isReadyNode)
	s.cleanNode(lost)
	s.stagedOn(now.Spec.NodeName)
	s.writesOn(now, data)
	if err := errors.Join(auditedOn(suite.machine.on(lost), s.name), auditedOn(suite.machine.on(now.Spec.NodeName), s.name)); err != nil {
		t.Error(err)
	}
	if seen := suite.news.of(s.name); seen.stages != 2 || seen.pods[tarn.StepCreation] != 1 || len(s.records()) != 1 || len(entriesOf(t, shelf)) != 1 {
		t.Errorf("there were %d stages, %d creation pods, %d volumes and the directories %q; want 2, 1, 1 and 1",
			seen.stages, seen.pods[tarn.StepCreation], len(s.records()), entriesOf(t, shelf))
	}
}
