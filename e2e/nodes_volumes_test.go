//go:build e2e && nodes

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func TestOnThreeNodesASharedVolumeHasAStageForEachNodeAndMode(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "both")
	sections := shelved(shelf)
	sections["volumeStaging"] = script{hostDir: shelf, privileged: true,
		text: "set -e; mkdir /pav/volume; mount --bind /host/{{ handle|tobash }} /pav/volume{% if readOnly %}; mount -o remount,bind,ro /pav/volume{% endif %}",
	}.section(nil)
	s.create(s.provisioner(sections))
	s.class(corev1.PersistentVolumeReclaimDelete)
	claim := s.bound(s.claim("data"))
	first := s.writer("first", claim.Name, nodes[1])
	data := filepath.Join(shelf, entriesOf(t, shelf)[0])
	second := s.consumer("second", claim.Name, "cd /data; sha256sum -c sum; "+stays, onNode(nodes[1]))
	third := s.consumer("third", claim.Name, "cd /data; sha256sum -c sum; cp blob copy; "+stays, onNode(nodes[2]))
	reader := s.consumer("reader", claim.Name, "exec 2>&1; cd /data; sha256sum -c sum; if touch mine; then exit 1; fi; echo tried; "+stays, onNode(nodes[2]), func(p *corev1.Pod) {
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	})
	for _, pod := range []*corev1.Pod{second, third, reader} {
		s.ready(pod)
		s.prints(pod, "blob: OK")
	}
	if text := s.prints(reader, "tried"); !strings.Contains(text, "Read-only file system") {
		t.Errorf("writing to a read-only volume said %q", text)
	}
	s.stagedOn(nodes[1], nodes[2], nodes[2]+" ro")

	// The last pod of a stage ends it, and no other.
	s.remove(third)
	s.stagedOn(nodes[1], nodes[2]+" ro")
	s.unstagedOn(shelf, nodes[2])
	s.remove(first)
	s.stagedOn(nodes[1], nodes[2]+" ro")
	s.remove(second)
	s.stagedOn(nodes[2] + " ro")
	s.unstagedOn(shelf, nodes[1])
	s.cleanNode(nodes[1])
	s.lines(data)
	late := s.consumer("late", claim.Name, "cd /data; sha256sum -c sum", onNode(nodes[0]))
	s.succeeded(late)
	s.remove(late)
	s.stagedOn(nodes[2] + " ro")
	s.unstagedOn(shelf, nodes[0])
	s.neverRestarted(reader)
	s.remove(reader)
	s.stagedOn()
	s.unstagedOn(shelf, nodes[2])
	if seen := suite.news.of(s.name); seen.stages != 4 || seen.pods[tarn.StepStaging] != 4 || seen.pods[tarn.StepUnstaging] != 4 {
		t.Errorf("there were %d stages, %d staging and %d unstaging pods, want 4 of each", seen.stages, seen.pods[tarn.StepStaging], seen.pods[tarn.StepUnstaging])
	}
}

func TestOnThreeNodesAVolumeOfANodeIsMadeWhereThereIsRoom(t *testing.T) {
	shelf := t.TempDir()
	pool := filepath.Join(shelf, "pool")
	if err := os.Mkdir(pool, 0o777); err != nil {
		t.Fatal(err)
	}
	s, nodes := onThreeNodes(t, "room")
	for i, size := range []string{"16m", "64m", "64m"} {
		s.memoryDiskOn(suite.machine.on(nodes[i]), pool, size)
	}
	bind := script{hostDir: shelf, privileged: true, text: "set -e; mkdir /pav/volume; mount --bind /host/pool/{{ handle|tobash }} /pav/volume"}
	s.tied(fields{
		"nodeCapacity": fields{"path": "{{ params.pool }}"},
		// The first node that is selected has become full meanwhile.
		"volumeCreation": notesNode(shelf, "created", `set -e
if mkdir /host/tried; then
  echo $NODE > /host/full; head -c 60m /dev/zero > /host/pool/other; echo "no room on $NODE" > /pav/error; exit 1
fi
mkdir /host/pool/{{ defaultHandle|tobash }}; chmod 777 /host/pool/{{ defaultHandle|tobash }}`, asRequested),
		"volumeDeletion": notesNode(shelf, "deleted", "rm -rf /host/pool/{{ handle|tobash }}", nil),
		"volumeStaging":  bind.section(nil),
	}, func(class *storagev1.StorageClass) {
		waitsForPods(class)
		class.Parameters = map[string]string{"pool": pool}
	})
	s.await("the room on three nodes to be measured", func() (bool, string) {
		var list storagev1.CSIStorageCapacityList
		if err := suite.live.List(s.ctx, &list, client.MatchingLabels{tarn.LabelProvisioner: s.name}); err != nil {
			return false, err.Error()
		}
		var sizes []int64
		for i := range list.Items {
			sizes = append(sizes, list.Items[i].Capacity.ScaledValue(resource.Mega))
		}
		slices.Sort(sizes)
		return slices.Equal(sizes, []int64{17, 68, 68}), fmt.Sprintf("it is %v MB", sizes)
	})

	claim := s.claimWith("data", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size("32Mi") })
	choices := s.choices(claim)
	pod := s.consumer("writer", claim.Name, keepsData, readyWhenWriting)
	s.ready(pod)
	if err := s.get(pod); err != nil {
		t.Fatal(err)
	}
	full, created := s.onShelf(shelf, "full"), s.onShelf(shelf, "created")
	s.told(claim, "ProvisioningFailed", "no room on "+full)
	if full == created || created != pod.Spec.NodeName || !slices.Contains(nodes[1:], full) || !slices.Contains(nodes[1:], created) {
		t.Errorf("node %q was full, the volume was made on %q, the pod is on %q; want the one and the other of %q", full, created, pod.Spec.NodeName, nodes[1:])
	}
	if got := choices(); slices.Contains(got, nodes[0]) {
		t.Errorf("the scheduler selected %q, and so the full node", got)
	}
	if n := len(s.records()); n != 1 {
		t.Errorf("there are %d volumes, want 1", n)
	}
	s.prints(pod, "wrote 10")
	s.remove(pod)
	again := s.consumer("again", claim.Name, keepsData, readyWhenWriting)
	s.ready(again)
	if err := s.get(again); err != nil || again.Spec.NodeName != created {
		t.Errorf("the next pod is on node %q, want %q: %v", again.Spec.NodeName, created, err)
	}
	if text := s.printed(again); !strings.Contains(text, "blob: OK") {
		t.Errorf("the pod has not found its data, and says:\n%s", text)
	}
}

// xfsFolder is where volumes of ofXFS are. Each node has its own.
const xfsFolder = "/var/lib/tarn/e2e-xfs"

// ofXFS begins a case with the ready provisioner xfs.
func ofXFS(t *testing.T) *scenario {
	t.Helper()
	return onTheShelfWith(t, "xfs", map[string]string{"folder": xfsFolder})
}

func TestOnThreeNodesXFSVolumesAreMadeWhereTheirPodsRun(t *testing.T) {
	s, nodes := onThreeNodesWith(t, func() *scenario { return ofXFS(t) })
	var pods []*corev1.Pod
	for i, node := range nodes {
		claim := s.claimWith(fmt.Sprintf("data-%d", i), asksModes(corev1.ReadWriteOnce), func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.Resources.Requests = size("300Mi")
		})
		pods = append(pods, s.consumer(fmt.Sprintf("writer-%d", i), claim.Name, keepsData, onNode(node), readyWhenWriting))
	}
	for i, pod := range pods {
		s.ready(pod)
		claim := s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("data-%d", i), Namespace: s.name}})
		node := &corev1.Node{ObjectMeta: named(nodes[i])}
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		s.tiedTo(claim, node)
		for _, other := range nodes {
			files, err := suite.machine.on(other).entries([]string{xfsFolder})
			if err != nil {
				t.Fatal(err)
			}
			has := slices.ContainsFunc(files, func(path string) bool { return strings.Contains(path, claim.Spec.VolumeName) })
			if has != (other == nodes[i]) {
				t.Errorf("node %s has the files %q, but the volume of the claim is %s of node %s", other, files, claim.Spec.VolumeName, nodes[i])
			}
		}
	}
}
