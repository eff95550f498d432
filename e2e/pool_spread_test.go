//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

func toleratesPlayed(value string) []corev1.Toleration {
	return []corev1.Toleration{{Key: playedTaint, Operator: corev1.TolerationOpEqual, Value: value, Effect: corev1.TaintEffectNoSchedule}}
}

// sparesByZone gives the names of a pool's spares by the only zone that can use each. It wants the
// pool to know that zone.
func (s *scenario) sparesByZone() map[string][]string {
	s.t.Helper()
	found := map[string][]string{}
	for _, vol := range s.volumes(isSpare) {
		var zone string
		if a := vol.Spec.NodeAffinity; a != nil && a.Required != nil && len(a.Required.NodeSelectorTerms) == 1 {
			for _, e := range a.Required.NodeSelectorTerms[0].MatchExpressions {
				if e.Key == corev1.LabelTopologyZone && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
					zone = e.Values[0]
				}
			}
		}
		if noted := vol.Annotations[tarn.AnnotationPoolTopology]; zone == "" || noted != zone {
			s.t.Errorf("spare %s is of zone %q, its pool has noted %q", vol.Name, zone, noted)
		}
		found[zone] = append(found[zone], vol.Name)
	}
	return found
}

// evenly wants two spares in each open zone, and no filler left.
func (s *scenario) evenly(set *tarn.PersistentVolumeSet, open ...string) map[string][]string {
	s.t.Helper()
	s.filled(set, 2*len(open))
	spares := s.sparesByZone()
	if zones := slices.Sorted(maps.Keys(spares)); !slices.Equal(zones, open) {
		s.t.Fatalf("there are spares in zones %q, want them in %q: %v", zones, open, spares)
	}
	for zone, names := range spares {
		if len(names) != 2 {
			s.t.Errorf("zone %s has %d spares, want 2: %v", zone, len(names), spares)
		}
	}
	s.await("the fillers to be gone", func() (bool, string) {
		var pods corev1.PodList
		if err := suite.cached.List(s.ctx, &pods, client.MatchingLabels{tarn.LabelPool: s.name}); err != nil {
			return false, err.Error()
		}
		claims := s.fillers()
		return len(pods.Items)+len(claims) == 0, fmt.Sprintf("%d pods and %d claims are left", len(pods.Items), len(claims))
	})
	return spares
}

func TestSparesAreSpreadOverZonesAndARefillGoesWhereOneWasDrawn(t *testing.T) {
	t.Parallel()
	s := begin(t, "spread")
	// Nodes in a third zone have a taint that no pod of this case tolerates.
	z := s.zones(map[string]string{"e2e-a": s.name, "e2e-b": s.name, "e2e-closed": "others"})
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	s.create(&storagev1.StorageClass{ // the driver serves no other node
		ObjectMeta: named(s.name), Provisioner: s.name, VolumeBindingMode: &mode,
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{
			Key: corev1.LabelTopologyZone, Values: []string{"e2e-a", "e2e-b", "e2e-closed"},
		}}}},
	})
	set := s.pool(4, 8, func(set *tarn.PersistentVolumeSet) {
		set.Spec.Template.TopologyKey = corev1.LabelTopologyZone
		set.Spec.Template.Tolerations = toleratesPlayed(s.name)
	})
	spares := s.evenly(set, "e2e-a", "e2e-b")
	if placed := z.fillersPlaced(); !slices.Equal(placed, []string{"e2e-a", "e2e-a", "e2e-b", "e2e-b"}) {
		t.Errorf("the scheduler has placed filler pods in zones %q, want two in each", placed)
	}

	// Pods of one zone use all its spares. They are replaced in that zone.
	for i := range 2 {
		claim := s.claim(fmt.Sprintf("data-%d", i))
		s.consumer("reader-"+claim.Name, claim.Name, "true", func(pod *corev1.Pod) {
			pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "e2e-b"}
			pod.Spec.Tolerations = toleratesPlayed(s.name)
		})
	}
	var drawn []string
	for i := range 2 {
		claim := s.bound(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: fmt.Sprintf("data-%d", i)}})
		drawn = append(drawn, claim.Spec.VolumeName)
	}
	slices.Sort(drawn)
	slices.Sort(spares["e2e-b"])
	if !slices.Equal(drawn, spares["e2e-b"]) {
		t.Errorf("pods in zone e2e-b have drawn %q, want its spares %q", drawn, spares["e2e-b"])
	}
	again := s.evenly(set, "e2e-a", "e2e-b")
	slices.Sort(spares["e2e-a"])
	slices.Sort(again["e2e-a"])
	if !slices.Equal(again["e2e-a"], spares["e2e-a"]) {
		t.Errorf("the spares of zone e2e-a are %q, want those it had, %q", again["e2e-a"], spares["e2e-a"])
	}

	// The deletion of the set deletes the spares in all zones.
	s.clear("pods", &corev1.PodList{}, client.InNamespace(s.name))
	s.clear("claims", &corev1.PersistentVolumeClaimList{}, client.InNamespace(s.name))
	s.remove(set)
	s.noVolumes()
}
