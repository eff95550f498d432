//go:build e2e

package e2e

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// neverPulled gives a section whose pod's image cannot be had in the 20 s that it has.
func neverPulled() fields {
	section := script{text: "true"}.section(nil)
	container(section)["image"] = "tarn.invalid/no-such-image:1"
	podSpec(section)["activeDeadlineSeconds"] = int64(20)
	return section
}

// As the kubelet ends such a pod it overwrites what its container waited for; of creation
// TestACreationPodThatCannotPullItsImageIsToldAtItsDeadline says it.
func TestAPodThatCannotBeginIsToldAtItsDeadlineWithWhatItWaitedForIn(t *testing.T) {
	t.Parallel()
	told := []string{"has not ended within 20s", "container main", "ImagePull", "tarn.invalid/no-such-image"}
	works := script{text: "true"}.section(nil)
	for _, c := range []struct {
		name string
		// sections are the provisioner's, and mended what lets the volume go.
		sections, mended fields
		run              func(s *scenario, claim *corev1.PersistentVolumeClaim)
	}{
		{"deletion", fields{"volumeDeletion": neverPulled()}, fields{"volumeDeletion": works}, func(s *scenario, claim *corev1.PersistentVolumeClaim) {
			s.remove(claim)
			s.told(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}, "VolumeFailedDelete", told...)
		}},
		{"expansion", fields{"volumeExpansion": neverPulled()}, nil, func(s *scenario, claim *corev1.PersistentVolumeClaim) {
			s.ask(claim, "64Mi")
			s.complains(claim, corev1.PersistentVolumeClaimResizing, "tarn.invalid/no-such-image") // as long as it waits
			s.told(claim, "VolumeResizeFailed", told...)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "stuck-"+c.name)
			s.step = 3 * soon
			sections := fields{"volumeCreation": asRequested, "volumeStaging": greeting}
			maps.Copy(sections, c.sections)
			s.create(s.provisioner(sections))
			c.run(s, s.growable())
			if c.mended != nil {
				maps.Copy(sections, c.mended)
				s.edit(s.provisioner(sections))
			}
		})
	}
}
