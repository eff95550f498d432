//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// becomes waits until a volume has a phase.
func (s *scenario) becomes(vol *corev1.PersistentVolume, want corev1.PersistentVolumePhase) {
	s.t.Helper()
	now := vol.DeepCopy()
	s.await("volume "+vol.Name+" to be "+string(want), func() (bool, string) {
		if err := s.get(now); err != nil {
			return false, err.Error()
		}
		return now.Status.Phase == want, "it is " + string(now.Status.Phase)
	})
}

func TestReclaimHoldsToThePolicyInWhateverOrderClaimAndVolumeGo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string // case 132, both orders
		policy      corev1.PersistentVolumeReclaimPolicy
		volumeFirst bool
		wantFolders int
	}{
		{"Delete, the claim first", corev1.PersistentVolumeReclaimDelete, false, 0},
		{"Delete, the volume first", corev1.PersistentVolumeReclaimDelete, true, 0},
		{"Retain, the claim first", corev1.PersistentVolumeReclaimRetain, false, 1},
		{"Retain, the volume first", corev1.PersistentVolumeReclaimRetain, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			shelf := t.TempDir()
			s := begin(t, "order")
			s.needsThisMachine()
			s.create(s.provisioner(shelved(shelf)))
			s.class(c.policy)
			claim := s.bound(s.claim("data"))
			vol := &corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}
			if c.volumeFirst {
				s.delete(vol)
			}
			s.remove(claim)
			if !c.volumeFirst && c.policy == corev1.PersistentVolumeReclaimRetain {
				s.becomes(vol, corev1.VolumeReleased)
				s.delete(vol)
			}
			s.gone(vol)
			s.gone(&tarn.PavVolume{ObjectMeta: named(vol.Name)})
			if left := entriesOf(t, shelf); len(left) != c.wantFolders {
				t.Errorf("there are folders %q, want %d", left, c.wantFolders)
			}
		})
	}
}
