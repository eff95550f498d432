//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// handWritten makes a volume of the case's provisioner as an administrator does. It also makes a
// claim of the same name bound to it.
func (s *scenario) handWritten(name, handle string, edits ...func(*corev1.PersistentVolume)) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	vol := &corev1.PersistentVolume{ObjectMeta: named(s.name + "-" + name)}
	vol.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("2Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.name, VolumeHandle: handle}},
	}
	for _, edit := range edits {
		edit(vol)
	}
	s.create(vol)
	s.t.Cleanup(func() { s.deleteIfThere(vol) })
	return s.claimOf(name, vol)
}

// claimOf makes a claim that asks for a handwritten volume, and waits until it is bound.
func (s *scenario) claimOf(name string, vol *corev1.PersistentVolume, edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named(name)}
	claim.Namespace = s.name
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(""), VolumeName: vol.Name, AccessModes: vol.Spec.AccessModes,
		Resources: corev1.VolumeResourceRequirements{Requests: size("1Mi")},
	}
	for _, edit := range edits {
		edit(claim)
	}
	s.create(claim)
	return s.bound(claim)
}

// never fails the case if a pod of one of the steps was seen.
func (s *scenario) never(steps ...tarn.Step) {
	s.t.Helper()
	for _, step := range steps {
		if n := suite.news.of(s.name).pods[step]; n > 0 {
			s.t.Errorf("saw %d pods for %s, want none", n, step)
		}
	}
}

// The kubelet asks with the first of the volume's modes, which need not be a mode of the claim.
func TestAClaimOfAnotherModeThanTheVolumesFirstIsStaged(t *testing.T) {
	t.Parallel()
	s := begin(t, "second-mode")
	modes := `{{ pvc.spec.accessModes|join(',')|tobash }}`
	s.create(s.provisioner(fields{
		"volumeValidation": fields{"accessModes": []any{"ReadWriteOnce", "ReadWriteMany"}},
		"volumeStaging":    script{text: "mkdir /pav/volume && echo " + modes + " > /pav/volume/modes"}.section(nil),
		"volumeUnstaging":  script{text: "true"}.section(nil),
	}))
	vol := &corev1.PersistentVolume{ObjectMeta: named(s.name)}
	vol.Spec = corev1.PersistentVolumeSpec{
		Capacity: size("2Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.name, VolumeHandle: "shelf-7"}},
	}
	s.create(vol)
	t.Cleanup(func() { s.deleteIfThere(vol) })
	claim := s.claimOf("data", vol, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	pod := s.consumer("reader", claim.Name, `test "$(cat /data/modes)" = ReadWriteMany`)
	s.succeeded(pod)
	s.remove(pod)
	s.remove(claim)
}

func TestTheValidationPodSeesAVolumeWrittenByHandBeforeItIsStaged(t *testing.T) {
	t.Parallel()
	s := begin(t, "by-hand-pod")
	check := `test {{ handle|tobash }} = good && test {{ requestedMinCapacity }} = 2097152 || { echo 'there is no shelf {{ handle }}' > /pav/error; false; }`
	s.create(s.provisioner(fields{
		"volumeValidation": script{text: check}.section(nil),
		"volumeStaging":    greeting,
		"volumeUnstaging":  script{text: "true"}.section(nil),
	}))
	bad := s.consumer("bad", s.handWritten("bad", "bad").Name, "true")
	s.told(bad, "FailedMount", "Validation pod failed: there is no shelf bad")
	s.never(tarn.StepStaging, tarn.StepUnstaging)
	s.remove(bad)
	good := s.consumer("good", s.handWritten("good", "good").Name, "grep -q hello /data/greeting")
	s.succeeded(good)
	s.remove(good)
}
