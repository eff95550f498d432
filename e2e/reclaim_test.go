//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Case 129.
func TestReclaimDeletesTheOldVolumeOfAClaimThatIsMadeAnew(t *testing.T) {
	t.Parallel()
	shelf := t.TempDir()
	s := begin(t, "anew")
	s.needsThisMachine()
	s.create(s.provisioner(shelved(shelf)))
	s.class(corev1.PersistentVolumeReclaimDelete)
	old := s.bound(s.claim("data"))
	s.remove(old)
	anew := s.bound(s.claim("data"))
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(old.Spec.VolumeName)})
	if anew.Spec.VolumeName == old.Spec.VolumeName {
		t.Errorf("the new claim has the old one's volume %s", old.Spec.VolumeName)
	}
	if left := entriesOf(t, shelf); len(left) != 1 {
		t.Errorf("there are folders %q, want that of the new claim", left)
	}
	s.remove(anew)
}

// Cases 130 and 133. Another driver's volume is Released and left to that driver. An unknown policy
// is rejected before any controller could act on it.
func TestReclaimLeavesToOtherDriversWhatIsTheirs(t *testing.T) {
	t.Parallel()
	s := begin(t, "theirs")
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.name + "-theirs", Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "other.example.com"}}}
	vol.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("1Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: s.name + "-theirs",
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.example.com", VolumeHandle: "h"}},
	}
	s.create(vol)
	t.Cleanup(func() { s.deleteIfThere(vol) })
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "theirs"}}
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: &vol.Spec.StorageClassName, AccessModes: vol.Spec.AccessModes, Resources: corev1.VolumeResourceRequirements{Requests: size("1Mi")},
	}
	s.create(claim)
	s.bound(claim)
	s.remove(claim)
	s.becomes(vol, corev1.VolumeReleased)
	s.dynamicLife() // enough time for a controller that takes it for its own
	s.becomes(vol, corev1.VolumeReleased)
	if err := s.get(vol); err != nil || vol.DeletionTimestamp != nil {
		t.Errorf("the volume is %+v, %v, want it left alone", vol, err)
	}
	s.refused(suite.live.Patch(s.ctx, vol, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Burn"}}`))), "persistentVolumeReclaimPolicy", "Burn")
}
