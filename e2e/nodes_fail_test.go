//go:build e2e && nodes

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// statefulSet makes a StatefulSet of one pod with a volume of the case's class.
func (s *scenario) statefulSet(name string, edits ...func(*corev1.Pod)) *appsv1.StatefulSet {
	s.t.Helper()
	labels := map[string]string{"app": name}
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
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name}, Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size("300Mi")},
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
	s.statefulSet("db", onNode(nodes[1:]...), readyWhenWriting)
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

// locked is shelved with a lock for each volume, a directory that contains the name of the node
// that has the volume staged.
func locked(shelf string) fields {
	sections := shelved(shelf)
	sections["volumeStaging"] = script{hostDir: shelf, privileged: true, text: `set -e
lock=/host/lock-{{ handle|tobash }}
node={{ node.metadata.name|tobash }}
if ! mkdir $lock 2> /dev/null && [ "$(cat $lock/node)" != $node ]; then
  echo "the volume is staged on node $(cat $lock/node), which has not released its lock" > /pav/error
  exit 1
fi
echo $node > $lock/node
mkdir /pav/volume
mount --bind /host/{{ handle|tobash }} /pav/volume`}.section(nil)
	sections["volumeUnstaging"] = script{hostDir: shelf, text: `lock=/host/lock-{{ handle|tobash }}
if [ "$(cat $lock/node)" = {{ node.metadata.name|tobash }} ]; then rm -r $lock; fi`}.section(nil)
	return sections
}

// isolate takes the network from a node. The function that it returns gives it back, once.
func (s *scenario) isolate(node string) (join func()) {
	s.node("isolate", node)
	var once sync.Once
	return func() { once.Do(func() { s.node("join", node) }) }
}

func TestOnThreeNodesALockRefusesASecondStagingWhileAnIsolatedNodeWritesOn(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "lock")
	s.create(s.provisioner(locked(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	data := filepath.Join(shelf, entriesOf(t, shelf)[0])
	first := s.writer("first", claim.Name, nodes[1])

	join := s.isolate(nodes[1])
	defer join()
	second := s.consumer("second", claim.Name, keepsData, onNode(nodes[2]), readyWhenWriting)
	s.told(second, "FailedMount", "the volume is staged on node "+nodes[1]+", which has not released its lock")
	// Without its network, the node neither learns that its pod was deleted, nor stops it.
	if err := suite.live.Delete(s.ctx, first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.gone(first)
	before := s.lines(data)
	s.await("the isolated node to write on", func() (bool, string) {
		return s.lines(data) > before+20, fmt.Sprintf("%d lines, there were %d", s.lines(data), before)
	})
	if err := s.get(second); err != nil || isReadyPod(second) {
		t.Fatalf("the second pod runs beside the first: %v", err)
	}

	join()
	s.ready(second)
	if text := s.printed(second); !strings.Contains(text, "blob: OK") {
		t.Errorf("the pod has not found its data, and says:\n%s", text)
	}
	s.stagedOn(nodes[2])
	s.writesOn(second, data)
	s.cleanNode(nodes[1])
	s.nodeBecomes(nodes[1], "ready again", isReadyNode)
}

func TestOnThreeNodesWithoutALockAnIsolatedNodeWritesBesideAnother(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "no-lock")
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	data := filepath.Join(shelf, entriesOf(t, shelf)[0])
	first := s.writer("first", claim.Name, nodes[1])

	join := s.isolate(nodes[1])
	defer join()
	second := s.consumer("second", claim.Name, `trap exit TERM; cd /data; sha256sum -c sum
while true; do echo line >> second; touch /tmp/ready; sleep 0.1 & wait $!; done`, onNode(nodes[2]), readyWhenWriting)
	s.ready(second)
	s.stagedOn(nodes[1], nodes[2])
	grows := func(file string) {
		t.Helper()
		length := func() int64 {
			info, err := os.Stat(filepath.Join(data, file))
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		before := length()
		s.await(file+" of the volume to grow", func() (bool, string) { return length() > before+20, fmt.Sprintf("it has %d bytes", length()) })
	}
	grows("log")
	if err := suite.live.Delete(s.ctx, first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.gone(first)
	grows("log")
	grows("second")

	join()
	s.stagedOn(nodes[2])
	s.cleanNode(nodes[1])
	ended := s.lines(data)
	grows("second")
	if n := s.lines(data); n != ended {
		t.Errorf("the first pod has written %d lines after its node was clean", n-ended)
	}
	s.neverRestarted(second)
	s.nodeBecomes(nodes[1], "ready again", isReadyNode)
	s.unstagedOn(shelf, nodes[1])
	if err := errors.Join(auditedOn(suite.machine.on(nodes[1]), s.name), auditedOn(suite.machine.on(nodes[2]), s.name)); err != nil {
		t.Error(err)
	}
	if seen := suite.news.of(s.name); seen.stages != 2 || seen.pods[tarn.StepCreation] != 1 || len(s.records()) != 1 || len(entriesOf(t, shelf)) != 1 {
		t.Errorf("there were %d stages, %d creation pods, %d volumes and the directories %q; want 2, 1, 1 and 1",
			seen.stages, seen.pods[tarn.StepCreation], len(s.records()), entriesOf(t, shelf))
	}
}
