//go:build e2e && nodes

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// In these cases Tarn's parts are pods on three nodes, as the chart installs them. `make
// test-nodes` runs them in a cluster of hack/addon.sh.

const (
	// worksWithin is how soon another controller must serve new claims after the leader's node was
	// cut, beside the API server's answers.
	worksWithin = 10 * time.Second
	// tooSlow is an answer of the API server with which that cannot be expected: a leader gives up its
	// lease when renewals are not answered in time, and the kubelet pauses before it starts it again.
	tooSlow = time.Second
)

// onTwoNodes waits until two controllers are ready on different nodes, none of which is the given one.
func (s *scenario) onTwoNodes(off string) {
	s.t.Helper()
	s.await("the controllers to run on two nodes", func() (bool, string) {
		pods, err := podsOf(s.ctx, "controller")
		ready, on := 0, map[string]bool{}
		for i := range pods {
			if p := &pods[i]; p.DeletionTimestamp == nil && isReadyPod(p) {
				ready++
				on[p.Spec.NodeName] = true
			}
		}
		return ready == 2 && len(on) == 2 && !on[off], fmt.Sprintf("%d are ready, on the nodes %v (%v)", ready, on, err)
	})
}

// apart proves that the controllers run on different nodes, as installed. Then it moves them away
// from one node.
func (s *scenario) apart(from string) {
	s.t.Helper()
	s.onTwoNodes("")
	s.kubectl("cordon", from)
	defer s.kubectl("uncordon", from)
	for _, pod := range s.parts("controller") {
		if pod.Spec.NodeName == from {
			s.delete(&pod)
		}
	}
	s.onTwoNodes(from)
}

func TestAddOnOnThreeNodesAnotherControllerWorksWhenTheLeadersNodeIsCut(t *testing.T) {
	needsAddOn(t)
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "leader-cut")
	s.step = 4 * soon // the kubelet doubles its pause after each restart of a controller
	// On a node that is cut, nobody knows how far a creation has come, so it can be repeated.
	s.create(s.provisioner(fields{
		"volumeCreation": notesNode(shelf, "last", `set -e
mkdir -p /host/volumes/{{ defaultHandle|tobash }}
echo {{ defaultHandle|tobash }} $NODE >> /host/made`, asRequested),
		"volumeDeletion": script{hostDir: shelf, text: "rm -rf /host/volumes/{{ handle|tobash }}"}.section(nil),
		"volumeStaging":  greeting,
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	all := &succession{scenario: s, on: s.besideItself(), shelf: shelf}
	s.apart(nodes[0])

	var claims []*corev1.PersistentVolumeClaim
	for i := range 40 {
		claims = append(claims, s.claim(fmt.Sprintf("early-%02d", i)))
	}
	s.await("some claims to be Bound", func() (bool, string) {
		n := s.boundOf(claims)
		return n >= 10, fmt.Sprintf("%d are", n)
	})
	lost, back, late := all.loses()
	defer back()
	claims = append(claims, late...)

	// Pods on the node that was cut may still run, as far as the cluster knows.
	s.await("all claims to be Bound whose creation pods are on other nodes", func() (bool, string) {
		n, waits := s.boundOf(claims), 0
		for _, pod := range s.stepPods(tarn.StepCreation) {
			if pod.Spec.NodeName == lost {
				waits++
			}
		}
		return n+waits >= len(claims), fmt.Sprintf("%d of %d are, and %d wait for the node", n, len(claims), waits)
	})
	t.Logf("%d claims wait for the node", len(claims)-s.boundOf(claims))
	s.nodeBecomes(lost, "given up", func(node *corev1.Node) bool { return !isReadyNode(node) })
	s.kubectl("taint", "node", lost, outOfService+"=nodeshutdown:NoExecute")
	s.await("all claims to be Bound after the taint", func() (bool, string) {
		n := s.boundOf(claims)
		return n == len(claims), fmt.Sprintf("%d of %d are", n, len(claims))
	})
	all.madeOnce(claims, lost)

	back()
	s.nodeBecomes(lost, "ready again", isReadyNode)
	all.standsBy()
	all.madeOnce(claims, lost)
	s.clear("claims", &corev1.PersistentVolumeClaimList{}, client.InNamespace(s.name))
	s.await("no volume to be left", func() (bool, string) {
		volumes, records := all.made()
		return volumes+records == 0, fmt.Sprintf("there are %d volumes and %d records", volumes, records)
	})
	if entries := entriesOf(t, filepath.Join(shelf, "volumes")); len(entries) > 0 {
		t.Errorf("the volumes are gone, their directories are not: %q", entries)
	}
}

// boundOf counts the claims that are Bound.
func (s *scenario) boundOf(claims []*corev1.PersistentVolumeClaim) (n int) {
	for _, claim := range claims {
		now := claim.DeepCopy()
		if s.get(now) == nil && now.Status.Phase == corev1.ClaimBound {
			n++
		}
	}
	return n
}

// loses cuts the leader's node, makes ten claims, and proves that another controller works in time.
// It gives the name of the node, a function that starts it again, and the claims.
func (s *succession) loses() (lost string, back func(), late []*corev1.PersistentVolumeClaim) {
	s.t.Helper()
	before, leader := s.leader()
	slowest := answers(s.t, s.on.live)
	lost = leader.Spec.NodeName
	cut := time.Now()
	s.node("cut", lost)
	back = sync.OnceFunc(func() {
		s.node("start", lost)
		s.kubectl("taint", "node", lost, outOfService+"-")
	})
	for i := range 10 {
		late = append(late, s.claim(fmt.Sprintf("late-%d", i)))
	}
	last, next := s.on.handover(before)
	s.await("a volume to be begun for a new claim", func() (bool, string) {
		return slices.ContainsFunc(late, func(claim *corev1.PersistentVolumeClaim) bool {
			return s.get(&tarn.PavVolume{ObjectMeta: named("pvc-" + string(claim.UID))}) == nil
		}), "none is"
	})
	worked, answer := time.Since(cut), slowest(cut)
	s.t.Logf("the lease was taken %.1f s after its last renewal and %.1f s after the cut; a volume was begun for a new claim %.1f s after the cut; the API server took up to %s to answer",
		next.Spec.AcquireTime.Sub(last.Spec.RenewTime.Time).Seconds(), next.Spec.AcquireTime.Sub(cut).Seconds(), worked.Seconds(), answer)
	if limit := worksWithin + 8*answer; worked > limit && answer < tooSlow {
		s.t.Errorf("another controller worked %s after the cut, want at most %s", worked, limit)
	}
	return lost, back, late
}

// madeOnce proves that there is one volume, record and directory for each claim, and that no
// creation ran twice, except after one on the node that was cut.
func (s *succession) madeOnce(claims []*corev1.PersistentVolumeClaim, lost string) {
	s.t.Helper()
	volumes, records := s.made()
	entries := entriesOf(s.t, filepath.Join(s.shelf, "volumes"))
	if n := len(claims); volumes != n || records != n || len(entries) != n {
		s.t.Errorf("there are %d volumes, %d records and %d directories, want %d of each", volumes, records, len(entries), n)
	}
	text, err := os.ReadFile(filepath.Join(s.shelf, "made"))
	if err != nil {
		s.t.Fatal(err)
	}
	times := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if handle, node, _ := strings.Cut(strings.TrimSpace(line), " "); node != lost {
			times[handle]++
		}
	}
	for handle, n := range times {
		if n > 1 {
			s.t.Errorf("volume %s was made %d times", handle, n)
		}
	}
	if err := audited(s.name); err != nil {
		s.t.Error(err)
	}
}

// rounds is a script that repeats a part without end, and says the number of each round and the
// longest time that one has taken, in hundredths of a second. It fails with its first command that
// fails.
func rounds(begin, round string) string {
	return begin + `
now() { read up _ < /proc/uptime; t=${up%.*}${up#*.}; }
n=0; longest=0; now; last=$t
while true; do
` + round + `
now; [ $((t-last)) -le $longest ] || longest=$((t-last)); last=$t
n=$((n+1)); echo "round $n, longest $longest"; touch /tmp/ready
sleep 0.1
done`
}

var (
	// writesRounds writes files with their checksums, and checks each after it was written and before
	// it is replaced.
	writesRounds = rounds("", `f=/data/$HOSTNAME.$((n%8))
[ ! -e $f ] || sha256sum -c $f.sum > /dev/null
head -c 65536 /dev/urandom > $f; sha256sum $f > $f.sum; sha256sum -c $f.sum > /dev/null`)
	// readsRounds reads the files of fusefs.
	readsRounds = rounds(`sum=$(sha256sum < /data/greeting)`, `[ "$(sha256sum < /data/greeting)" = "$sum" ]
[ "$(sha256sum < /data/sub/greeting)" = "$sum" ]`)
)

// roundsOf gives what a pod of rounds has said last.
func (s *scenario) roundsOf(pod *corev1.Pod) (n, longest int) {
	s.t.Helper()
	text := strings.TrimSpace(s.printed(pod))
	last := text[strings.LastIndex(text, "\n")+1:]
	if _, err := fmt.Sscanf(last, "round %d, longest %d", &n, &longest); err != nil {
		s.t.Fatalf("pod %s has said %q: %v", pod.Name, last, err)
	}
	return n, longest
}

// use is a case of an upgrade: a pod of rounds on each node, which use one volume.
type use struct {
	*scenario
	script string
	pods   []*corev1.Pod
	mounts []string
	rounds []int
	// stages is how many there are in the end.
	stages int
}

// begins starts a pod on each node.
func (u *use) begins(nodes []string) {
	u.t.Helper()
	claim := u.bound(u.claim("data"))
	for i, node := range nodes {
		u.pods = append(u.pods, u.consumer("user-"+strconv.Itoa(i), claim.Name, u.script, onNode(node), readyWhenWriting))
	}
	for _, pod := range u.pods {
		u.ready(pod)
		if err := u.get(pod); err != nil {
			u.t.Fatal(err)
		}
		n, _ := u.roundsOf(pod)
		u.mounts, u.rounds = append(u.mounts, u.mountOf(pod)), append(u.rounds, n)
	}
}

// undisturbed proves that the pods have gone on with the same mounts and stages. It gives the
// longest round.
func (u *use) undisturbed() (slowest int) {
	u.t.Helper()
	for i, pod := range u.pods {
		u.await("pod "+pod.Name+" to go on", func() (bool, string) {
			n, longest := u.roundsOf(pod)
			slowest = max(slowest, longest)
			return n > u.rounds[i]+20, fmt.Sprintf("round %d, it was %d", n, u.rounds[i])
		})
		u.neverRestarted(pod)
		if now := u.mountOf(pod); now != u.mounts[i] {
			u.t.Errorf("the volume of pod %s on node %s is mounted anew", pod.Name, pod.Spec.NodeName)
		}
	}
	if seen := suite.news.of(u.name); seen.stages != u.stages || seen.pods[tarn.StepStaging] != u.stages {
		u.t.Errorf("%s: there were %d stages and %d staging pods, want %d of each", u.name, seen.stages, seen.pods[tarn.StepStaging], u.stages)
	}
	return slowest
}

// replaced waits until all node agents are of a release, and proves that they are replaced one
// after another.
func (s *scenario) replaced(nodes int, release string) {
	s.t.Helper()
	s.await("the agents to be replaced, one after another", func() (bool, string) {
		var pods corev1.PodList
		if err := suite.cached.List(s.ctx, &pods, client.InNamespace(tarnSystem), client.MatchingLabels{"app.kubernetes.io/component": "node"}); err != nil {
			return false, err.Error()
		}
		ready, fresh := map[string]bool{}, 0
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp == nil && isReadyPod(p) {
				ready[p.Spec.NodeName] = true
				if strings.HasSuffix(p.Spec.Containers[0].Image, ":"+release) {
					fresh++
				}
			}
		}
		if len(ready) < nodes-1 {
			s.t.Errorf("only %d of %d nodes have an agent", len(ready), nodes)
		}
		return fresh == nodes, fmt.Sprintf("%d are, %d are ready", fresh, len(ready))
	})
}

func TestAddOnOnThreeNodesAnUpgradeDisturbsNoPodOnAnyNode(t *testing.T) {
	a := needsAddOn(t)
	server := fusefs(t)
	begun := func(label string, make func(*scenario)) func() *scenario {
		return func() *scenario {
			s := begin(t, label)
			make(s)
			s.class(corev1.PersistentVolumeReclaimDelete)
			return s
		}
	}
	hello, nodes := onThreeNodesWith(t, begun("hello", func(s *scenario) {
		o := s.example("hello-world/1-provisioner.yaml")
		o.SetName(s.name)
		s.create(o)
	}))
	shared, _ := onThreeNodesWith(t, func() *scenario { return onTheShelfWith(t, "shared", map[string]string{"folder": t.TempDir()}) })
	fuse, _ := onThreeNodesWith(t, begun("fuse", func(s *scenario) {
		s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": served(server)}))
	}))
	uses := []*use{
		{scenario: hello, script: writesRounds, stages: 3},
		{scenario: shared, script: writesRounds, stages: 6}, // three are of the pods that come meanwhile
		{scenario: fuse, script: readsRounds, stages: 3},
	}
	for _, u := range uses {
		u.begins(nodes)
	}

	next := a.releases[1]
	a.upgrade(hello, next)
	claim := shared.claim("late")
	var late []*corev1.Pod
	for i, node := range nodes {
		late = append(late, shared.consumer("late-"+strconv.Itoa(i), claim.Name, "echo $HOSTNAME > /data/$HOSTNAME; grep -x $HOSTNAME /data/$HOSTNAME", onNode(node)))
	}
	hello.replaced(len(nodes), next)
	a.rolledOut(hello, next, next)
	hello.onTwoNodes("")
	for _, pod := range late { // they waited for the agents of their nodes at most
		shared.succeeded(pod)
	}
	slowest := 0
	for _, u := range uses {
		slowest = max(slowest, u.undisturbed())
	}
	t.Logf("the longest round of any pod took %d ms", 10*slowest)
}
