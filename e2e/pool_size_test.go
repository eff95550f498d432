//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// overstepped gives a check that fails the case when a pool has more volumes than its maximum, or
// reports more, including ordered ones. After the maximum was lowered, there may be up to last at
// first, and their number only falls.
func (s *scenario) overstepped(last int) func(*tarn.PersistentVolumeSet) {
	return func(set *tarn.PersistentVolumeSet) {
		total, most := len(s.volumes()), int(set.Spec.MaximumReplicas)
		if set.Status.ObservedGeneration == set.Generation {
			total = max(total, int(set.Status.Replicas))
		}
		if total > max(most, last) {
			s.t.Errorf("there are %d volumes of at most %d, and there were %d", total, most, last)
		}
		last = total
	}
}

func TestAPoolWithTooFewSparesStaysAtItsMaximum(t *testing.T) {
	t.Parallel()
	s := begin(t, "pool-most")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	set := s.pool(2, 3)
	s.filled(set, 2)
	claims := []*corev1.PersistentVolumeClaim{s.claim("a"), s.claim("b")}
	for _, claim := range claims {
		s.bound(claim)
	}
	now, overstepped := set.DeepCopy(), s.overstepped(0)
	s.await("the pool to be at its maximum", func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		overstepped(now)
		n := now.Status
		ready := meta.FindStatusCondition(n.Conditions, tarn.ConditionReady)
		return n.Replicas == 3 && n.BoundReplicas == 2 && n.UnboundReplicas == 1 && n.CreatingReplicas == 0 &&
			ready.Status == metav1.ConditionFalse && ready.Reason == "AtMaximum", fmt.Sprintf("it is %+v", n)
	})
	s.remove(claims[0]) // its volume is deleted, which frees a place
	s.filled(set, 2)
	for _, e := range s.events("", set.Name) {
		if e.Reason == "SpareGivenUp" {
			t.Errorf("a volume too many was made: %s", e.Message)
		}
	}
}

// handmade makes a volume of the case's pool without its provisioner, and gives its name.
func (s *scenario) handmade(name, capacity string, edits ...func(*corev1.PersistentVolume)) string {
	s.t.Helper()
	ofPool := func(vol *corev1.PersistentVolume) {
		vol.Labels, vol.Spec.StorageClassName, vol.Spec.Capacity = map[string]string{poolOf: s.name}, s.name, size(capacity)
		vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	return s.byHand(name, slices.Concat([]func(*corev1.PersistentVolume){ofPool}, edits)...).Name
}

// shrinks lowers a pool's maximum and waits until exactly the named volumes are left. The others
// are deleted one by one, the largest first. order lists all that may be deleted, from the first.
func (s *scenario) shrinks(set *tarn.PersistentVolumeSet, maximum int32, order []string, left ...string) {
	s.t.Helper()
	s.change(set, func(set *tarn.PersistentVolumeSet) { set.Spec.MinimumReplicas, set.Spec.MaximumReplicas = 0, maximum })
	slices.Sort(left)
	now, overstepped := set.DeepCopy(), s.overstepped(len(s.volumes()))
	s.await(fmt.Sprintf("the pool to shrink to %d", maximum), func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		overstepped(now)
		var names, stay, going []string
		for _, vol := range s.volumes() {
			names = append(names, vol.Name)
			if isSpare(&vol) {
				stay = append(stay, vol.Name)
			} else if slices.Contains(order, vol.Name) {
				going = append(going, vol.Name)
			}
		}
		s.oneByOne(order, stay, going)
		slices.Sort(names)
		return slices.Equal(names, left) && now.Status.ObservedGeneration == now.Generation && int(now.Status.Replicas) == len(left),
			fmt.Sprintf("there are %s, and the set says %+v", strings.Join(names, ", "), now.Status)
	})
}

// oneByOne wants at most one volume in deletion, and all before it in the order to be gone.
func (s *scenario) oneByOne(order, stay, going []string) {
	s.t.Helper()
	if len(going) > 1 {
		s.t.Fatalf("volumes %q go at once, want one by one", going)
	}
	for _, name := range stay {
		for _, smaller := range order[slices.Index(order, name)+1:] {
			if slices.Contains(going, smaller) || !slices.Contains(stay, smaller) {
				s.t.Fatalf("volume %s goes before %s", smaller, name)
			}
		}
	}
}

func TestAPoolThatShrinksGivesUpItsLargestSpareFirstAndNothingInUse(t *testing.T) {
	t.Parallel()
	s := begin(t, "pool-shrinks")
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	set := s.pool(2, 9)
	s.filled(set, 2)
	var made []string
	for _, vol := range s.volumes(isSpare) {
		made = append(made, vol.Name)
	}
	slices.Sort(made) // equal sizes are ordered by name

	// The largest volumes stay: they hold the data of a deleted claim, belong to a claim, or are
	// reserved for a later one.
	kept := s.handmade("kept", "128Mi")
	former := s.bound(s.claimWith("former", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = kept }))
	s.remove(former)
	s.phased(&corev1.PersistentVolume{ObjectMeta: named(kept)}, corev1.VolumeReleased)
	bound := s.handmade("bound", "64Mi")
	s.bound(s.claimWith("data", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = bound }))
	reserved := s.handmade("reserved", "32Mi", func(vol *corev1.PersistentVolume) {
		vol.Spec.ClaimRef = &corev1.ObjectReference{Namespace: s.name, Name: "later"}
	})
	small, large, middle := s.handmade("small", "512Ki"), s.handmade("large", "16Mi"), s.handmade("middle", "2Mi")
	order := []string{large, middle, made[0], made[1], small}
	s.await("all to be there", func() (bool, string) {
		spares := len(s.volumes(isSpare))
		return spares == len(order), fmt.Sprintf("%d spares", spares)
	})

	s.shrinks(set, 6, order, kept, bound, reserved, small, made[0], made[1])
	s.shrinks(set, 4, order, kept, bound, reserved, small)
	s.shrinks(set, 1, order, kept, bound, reserved)
	for _, name := range []string{kept, bound, reserved} {
		vol := &corev1.PersistentVolume{ObjectMeta: named(name)}
		if err := s.get(vol); err != nil || vol.DeletionTimestamp != nil || vol.Spec.ClaimRef == nil || vol.Spec.ClaimRef.Namespace != s.name {
			t.Errorf("volume %s is %+v, %v, want it left as it was", name, vol.Spec, err)
		}
	}
}
