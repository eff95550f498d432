//go:build e2e && nodes

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// zoned is a case whose pool is spread over the zones of three nodes.
type zoned struct {
	*scenario
	set   *tarn.PersistentVolumeSet
	draws int
}

// spread waits until the pool is filled with so many spares in each zone. It gives their names by
// zone.
func (z *zoned) spread(want map[string]int) map[string][]string {
	z.t.Helper()
	total := 0
	for _, n := range want {
		total += n
	}
	z.filled(z.set, total)
	spares, counts := map[string][]string{}, map[string]int{}
	for _, vol := range z.volumes(isSpare) {
		zone := vol.Annotations[tarn.AnnotationPoolTopology]
		spares[zone] = append(spares[zone], vol.Name)
		counts[zone]++
	}
	if !maps.Equal(counts, want) {
		z.t.Errorf("the spares are %v, want %v", spares, want)
	}
	return spares
}

// draw has a pod write to a volume on each of some nodes, and proves that each got the spare of its
// zone.
func (z *zoned) draw(spares map[string][]string, zones map[string]string, nodes ...string) {
	z.t.Helper()
	var pods []*corev1.Pod
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, node := range nodes {
		z.draws++
		claim := z.claim(fmt.Sprintf("data-%d", z.draws))
		claims[node] = claim
		pods = append(pods, z.consumer(fmt.Sprintf("writer-%d", z.draws), claim.Name, "echo mine > /data/note", onNode(node)))
	}
	for _, pod := range pods {
		z.succeeded(pod)
		z.remove(pod)
	}
	for node, claim := range claims {
		if got := z.bound(claim).Spec.VolumeName; !slices.Contains(spares[zones[node]], got) {
			z.t.Errorf("a claim on node %s has volume %s, want one of %q", node, got, spares[zones[node]])
		}
	}
}

// says waits until the pool's condition Ready contains a text, or does not.
func (z *zoned) says(text string, want bool) {
	z.t.Helper()
	z.await(fmt.Sprintf("Ready to say %q: %t", text, want), func() (bool, string) {
		now := z.set.DeepCopy()
		if err := z.get(now); err != nil {
			return false, err.Error()
		}
		ready := meta.FindStatusCondition(now.Status.Conditions, tarn.ConditionReady)
		return ready != nil && strings.Contains(ready.Message, text) == want, fmt.Sprintf("it is %+v", ready)
	})
}

func TestOnThreeNodesAPoolOfThreeZonesGoesOnWithoutOne(t *testing.T) {
	shelf := t.TempDir()
	s, nodes := onThreeNodes(t, "zones")
	s.tied(fields{
		"volumeCreation": script{hostDir: shelf, text: "mkdir -p -m 0777 /host/{{ defaultHandle|tobash }}"}.section(asRequested),
		"volumeDeletion": script{hostDir: shelf, text: "rm -rf /host/{{ handle|tobash }}"}.section(nil),
		"volumeStaging":  script{hostDir: shelf, privileged: true, text: "set -e; mkdir /pav/volume; mount --bind /host/{{ handle|tobash }} /pav/volume"}.section(nil),
	}, waitsForPods)
	zones, lost := map[string]string{nodes[0]: "a", nodes[1]: "b", nodes[2]: "c"}, nodes[2]
	z := &zoned{scenario: s, set: s.pool(3, 20, func(set *tarn.PersistentVolumeSet) { set.Spec.Template.TopologyKey = corev1.LabelTopologyZone })}
	each := map[string]int{"a": 1, "b": 1, "c": 1}
	z.draw(z.spread(each), zones, nodes...)
	spares := z.spread(each)

	s.node("cut", lost)
	start := sync.OnceFunc(func() { s.node("start", lost) })
	defer func() { start() }()
	const without = "no node of topology.kubernetes.io/zone c accepts volumes now, so none is created there, and 1 of them wait for it"
	z.says(without, true)
	z.draw(spares, zones, nodes[0], nodes[1])
	if again := z.spread(each); !slices.Equal(again["c"], spares["c"]) {
		t.Errorf("the spares of zone c are %q, want %q as before", again["c"], spares["c"])
	}

	start()
	z.says(without, false)
	z.draw(spares, zones, lost)
	spares = z.spread(each)

	s.node("cut", lost)
	start = sync.OnceFunc(func() { s.node("start", lost) })
	s.kubectl("delete", "node", lost)
	gone := spares["c"][0]
	s.told(z.set, "SpareGivenUp", gone)
	record := &tarn.PavVolume{ObjectMeta: named(gone)}
	s.await("the spare of the deleted node to wait for it", func() (bool, string) {
		if err := s.get(record); err != nil {
			return false, err.Error()
		}
		c := meta.FindStatusCondition(record.Status.Conditions, tarn.ConditionDeletable)
		return c != nil && c.Reason == "NodeGone" && strings.Contains(c.Message, "kubectl delete pavvolume "+gone), fmt.Sprintf("it is %+v", c)
	})
	spares = z.spread(map[string]int{"a": 2, "b": 1})

	start()
	s.gone(record)
	s.nodeBecomes(lost, "ready again", isReadyNode)
	z.draw(spares, zones, nodes[0])
	z.spread(each)
	if made, there := len(s.records()), len(entriesOf(t, shelf)); made != there || made != z.draws+3 {
		t.Errorf("there are %d records and %d directories, want %d of each", made, there, z.draws+3)
	}
}
