//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// notesNode is a section on a shelf whose pod writes the name of its node to a file there, and then
// runs a script.
func notesNode(shelf, file, text string, more fields) fields {
	section := script{hostDir: shelf, text: fmt.Sprintf("echo $NODE > /host/%s\n%s", file, text)}.section(more)
	container := section["podTemplate"].(fields)["spec"].(fields)["containers"].([]any)[0].(fields)
	container["env"] = []any{fields{"name": "NODE", "valueFrom": fields{"fieldRef": fields{"fieldPath": "spec.nodeName"}}}}
	return section
}

// tied makes a provisioner whose volumes belong to one node, and its class.
func (s *scenario) tied(sections fields, edit func(*storagev1.StorageClass)) {
	s.t.Helper()
	p := s.provisioner(sections)
	p.Object["spec"].(fields)["topology"] = "Node"
	s.create(p)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: s.name}
	edit(class)
	s.create(class)
}

func waitsForPods(class *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class.VolumeBindingMode = &mode
}

// aNode gives a ready node of the cluster.
func (s *scenario) aNode() *corev1.Node {
	s.t.Helper()
	var nodes corev1.NodeList
	if err := suite.live.List(s.ctx, &nodes); err != nil {
		s.t.Fatal(err)
	}
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return &nodes.Items[i]
			}
		}
	}
	s.t.Fatal("no node is ready")
	return nil
}

// tiedTo proves that the volume of a claim, and its record, name the node.
func (s *scenario) tiedTo(claim *corev1.PersistentVolumeClaim, node *corev1.Node) {
	s.t.Helper()
	vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	record := &tarn.PavVolume{ObjectMeta: named(claim.Spec.VolumeName)}
	for _, o := range []client.Object{vol, record} {
		if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			s.t.Fatal(err)
		}
	}
	if record.Status.NodeName != node.Name {
		s.t.Errorf("the record says node %q, want %q", record.Status.NodeName, node.Name)
	}
	affinity := vol.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil || len(affinity.Required.NodeSelectorTerms) != 1 {
		s.t.Fatalf("the volume has the affinity %+v, want one term", affinity)
	}
	want := []corev1.NodeSelectorRequirement{{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Labels[corev1.LabelHostname]},
	}}
	if got := affinity.Required.NodeSelectorTerms[0].MatchExpressions; fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("the volume's affinity is %v, want %v", got, want)
	}
}

// records gives the records of the case.
func (s *scenario) records() []tarn.PavVolume {
	s.t.Helper()
	var list tarn.PavVolumeList
	if err := suite.live.List(s.ctx, &list, client.MatchingLabels{tarn.LabelProvisioner: s.name}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

func TestAVolumeOfOneNodeIsMadeAndDestroyedWhereItsPodRuns(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "tied")
	s.needsThisMachine()
	s.tied(fields{
		"volumeCreation": notesNode(shelf, "created", "", asRequested),
		"volumeDeletion": notesNode(shelf, "deleted", "", nil),
		"volumeStaging":  greeting,
	}, waitsForPods)
	claim := s.claim("data")
	// The binder reports that it waits, and Tarn makes nothing meanwhile.
	s.told(claim, "WaitForFirstConsumer")
	if records := s.records(); len(records) > 0 {
		t.Errorf("before any pod uses the claim there are %d records, want none", len(records))
	}

	pod := s.consumer("reader", claim.Name, "grep -x hello /data/greeting")
	s.succeeded(pod)
	if err := s.get(pod); err != nil {
		t.Fatal(err)
	}
	node := s.aNode()
	claim = s.bound(claim)
	if claim.Annotations[selectedNode] != node.Name || pod.Spec.NodeName != node.Name {
		t.Errorf("the scheduler has selected %q, the pod ran on %q, want both %q", claim.Annotations[selectedNode], pod.Spec.NodeName, node.Name)
	}
	s.tiedTo(claim, node)
	s.remove(pod)
	s.remove(claim)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
	for _, file := range []string{"created", "deleted"} {
		if where := s.onShelf(shelf, file); where != node.Name {
			t.Errorf("%s on node %q, want %q", file, where, node.Name)
		}
	}
}

// forgotten marks a gap in the choices, where the API server no longer had the changes since the
// last one. On a busy machine, a watch may resume too late.
const forgotten = "forgotten"

// choices records which nodes the scheduler selects for a claim. An empty name means that the
// choice was given back.
func (s *scenario) choices(claim *corev1.PersistentVolumeClaim) func() []string {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	s.t.Cleanup(stop)
	var mu sync.Mutex
	seen := []string{""}
	note := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if name != seen[len(seen)-1] {
			seen = append(seen, name)
		}
	}
	go func() {
		for from := claim.ResourceVersion; ctx.Err() == nil; {
			s.follow(ctx, claim, from, note)
			now := &corev1.PersistentVolumeClaim{}
			if ctx.Err() != nil || suite.live.Get(ctx, client.ObjectKeyFromObject(claim), now) != nil {
				return
			}
			note(forgotten)
			note(now.Annotations[selectedNode])
			from = now.ResourceVersion
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// follow records the scheduler's choices for a claim from a version on, as long as the API server
// has the changes. The API server ends a slow watch; follow resumes there.
func (s *scenario) follow(ctx context.Context, claim *corev1.PersistentVolumeClaim, from string, note func(string)) {
	w, err := watchtools.NewRetryWatcherWithContext(ctx, from, &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = "metadata.name=" + claim.Name
			return suite.logs.CoreV1().PersistentVolumeClaims(claim.Namespace).Watch(ctx, o)
		},
	})
	if err != nil {
		s.t.Errorf("following claim %s: %v", claim.Name, err)
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if now, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && e.Type != watch.Deleted {
			note(now.Annotations[selectedNode])
		}
	}
}

func TestANodeWhereNoVolumeCanBeMadeIsGivenBackToTheScheduler(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "given-back")
	s.needsThisMachine()
	s.tied(fields{
		"volumeCreation": notesNode(shelf, "created", `if mkdir /host/tried; then echo "no room on $NODE" > /pav/error; exit 1; fi`, asRequested),
		"volumeDeletion": notesNode(shelf, "undone", "", nil),
		"volumeStaging":  greeting,
	}, waitsForPods)
	claim := s.claim("data")
	choices := s.choices(claim)
	pod := s.consumer("reader", claim.Name, "grep -x hello /data/greeting")
	s.bound(claim) // after three pods, one after another
	s.succeeded(pod)
	node := s.aNode()
	s.told(claim, "ProvisioningFailed", "no room on "+node.Name)
	// The scheduler also reports that the choice was given back.
	s.told(pod, "FailedScheduling", "provisioning failed for PVC \""+claim.Name+"\"")
	want := []string{"", node.Name, "", node.Name}
	s.await(fmt.Sprintf("the scheduler's choices to be %q", want), func() (bool, string) {
		got := choices()
		return slices.Equal(got, want) || slices.Contains(got, forgotten) && got[len(got)-1] == node.Name, fmt.Sprintf("they were %q", got)
	})
	if where := s.onShelf(shelf, "undone"); where != node.Name {
		t.Errorf("what the first attempt may have made was undone on %q, want %q", where, node.Name)
	}
	s.tiedTo(s.bound(claim), node)
}

// memoryDisk mounts a file system of a size on a directory of the node, and gives a function that changes
// the size.
func (s *scenario) memoryDisk(size string) (dir string, resize func(size string)) {
	s.t.Helper()
	return s.memoryDiskOn(suite.machine, s.t.TempDir(), size)
}

// memoryDiskOn is memoryDisk with a certain node and a directory.
func (s *scenario) memoryDiskOn(m machine, dir, size string) (_ string, resize func(size string)) {
	s.t.Helper()
	kubelet, err := m.kubelet()
	if err != nil {
		s.t.Fatal(err)
	}
	there := func(args ...string) {
		s.t.Helper()
		args = append([]string{"--target", strconv.Itoa(kubelet), "--mount", "--pid", "--"}, args...) // umount reads /proc
		if out, err := exec.CommandContext(context.Background(), "nsenter", args...).CombinedOutput(); err != nil {
			s.t.Fatalf("nsenter %q: %v: %s", args, err, out)
		}
	}
	there("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir)
	s.t.Cleanup(func() { there("umount", "--lazy", dir) }) // pods may still have it
	return dir, func(size string) { s.t.Helper(); there("mount", "-o", "remount,size="+size, dir) }
}

func TestAFullNodeIsNotSelectedUntilItHasRoomAgain(t *testing.T) {
	t.Parallel()
	s := begin(t, "full-node")
	s.needsThisMachine()
	pool, resize := s.memoryDisk("64m")
	s.tied(fields{
		"nodeCapacity": fields{"path": "{{ params.pool }}/volumes", "reserve": "25%"},
		// The first attempt for the large claim finds that another was faster.
		"volumeCreation": script{hostDir: pool, text: `{% if requestedMinCapacity > 64 * 1024 * 1024 %}
			if mkdir /host/tried; then echo "no room any more" > /pav/error; exit 1; fi
			{% endif %}`}.section(asRequested),
		"volumeStaging": greeting,
	}, func(class *storagev1.StorageClass) {
		waitsForPods(class)
		class.Parameters = map[string]string{"pool": pool}
	})
	of := func(request string) func(*corev1.PersistentVolumeClaim) {
		return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(request) }
	}
	node := s.aNode()
	free := &storagev1.CSIStorageCapacity{}
	s.await("48Mi to be measured", func() (bool, string) {
		var list storagev1.CSIStorageCapacityList
		if err := suite.live.List(s.ctx, &list, client.MatchingLabels{tarn.LabelProvisioner: s.name}); err != nil || len(list.Items) != 1 {
			return false, fmt.Sprintf("there are %d CSIStorageCapacities (%v)", len(list.Items), err)
		}
		free = &list.Items[0]
		return free.Capacity.Value() == 48<<20, "it is " + free.Capacity.String()
	})

	large := s.claimWith("large", of("100Mi"))
	choices := s.choices(large)
	pod := s.consumer("large", large.Name, "grep -x hello /data/greeting")
	s.told(pod, "FailedScheduling", "node(s) did not have enough free storage")
	want := "no node has the 100Mi free that it asks for: class " + s.name + " has 48Mi on node " + node.Name
	s.explains("claim", s.name+"/large", want)
	s.explains("pod", s.name+"/large", want)
	if got := choices(); !slices.Equal(got, []string{""}) {
		t.Errorf("the full node was selected: %q", got)
	}

	// The end of any step on the node shows that there is room.
	resize("256m")
	small := s.consumer("small", s.claimWith("small", of("1Mi")).Name, "grep -x hello /data/greeting")
	s.succeeded(small)
	s.succeeded(pod)
	s.told(large, "ProvisioningFailed", "no room any more")
	s.tiedTo(s.bound(large), node)

	// A class that is gone has no room anywhere.
	s.remove(pod)
	s.remove(small)
	s.remove(&storagev1.StorageClass{ObjectMeta: named(s.name)})
	s.gone(free)
}
