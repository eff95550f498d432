//go:build e2e

package e2e

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// neverPulled gives a section whose pod's image cannot be pulled within its 20 s.
func neverPulled() fields {
	section := script{text: "true"}.section(nil)
	container(section)["image"] = "tarn.invalid/no-such-image:1"
	podSpec(section)["activeDeadlineSeconds"] = int64(20)
	return section
}

// When the kubelet ends such a pod, it overwrites the reason why the container waited.
// TestACreationPodThatCannotPullItsImageIsToldAtItsDeadline covers creation.
func TestAPodThatCannotBeginIsToldAtItsDeadlineWithWhatItWaitedForIn(t *testing.T) {
	t.Parallel()
	told := []string{"has not ended within 20s", "container main", "ImagePull", "tarn.invalid/no-such-image"}
	works := script{text: "true"}.section(nil)
	for _, c := range []struct {
		name string
		// sections are the provisioner's, and mended replaces them so that the volume can be
		// deleted.
		sections, mended fields
		run              func(s *scenario, claim *corev1.PersistentVolumeClaim)
	}{
		{"deletion", fields{"volumeDeletion": neverPulled()}, fields{"volumeDeletion": works}, func(s *scenario, claim *corev1.PersistentVolumeClaim) {
			s.remove(claim)
			s.told(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)}, "VolumeFailedDelete", told...)
		}},
		{"expansion", fields{"volumeExpansion": neverPulled()}, nil, func(s *scenario, claim *corev1.PersistentVolumeClaim) {
			s.ask(claim, "64Mi")
			s.complains(claim, corev1.PersistentVolumeClaimResizing, "tarn.invalid/no-such-image") // while it waits
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

// A Secret volume, an image and a node are missing. The claim's message says so while the pod
// waits.
func TestAClaimIsToldInTimeWhatKeepsAStepPodFromStarting(t *testing.T) {
	t.Parallel()
	works := script{text: "true"}
	lacks := func(change func(section fields)) fields {
		section := script{text: "mkdir -p /pav/volume"}.section(nil)
		podSpec(section)["activeDeadlineSeconds"] = int64(25)
		change(section)
		return section
	}
	secret := lacks(func(section fields) {
		podSpec(section)["volumes"] = []any{fields{"name": "keys", "secret": fields{"secretName": "no-such-secret"}}}
		container(section)["volumeMounts"] = []any{fields{"name": "keys", "mountPath": "/keys"}}
	})
	image := lacks(func(section fields) { container(section)["image"] = "tarn.invalid/no-such-image:1" })
	nowhere := lacks(func(section fields) { podSpec(section)["nodeSelector"] = fields{"no-such": "node"} })
	with := func(section fields) fields {
		section = maps.Clone(section)
		maps.Copy(section, asRequested)
		return section
	}
	for _, c := range []struct {
		name     string
		sections fields
		want     string
		// used says that a pod uses the claim.
		used bool
	}{
		{"validation", fields{"volumeValidation": secret, "volumeCreation": asRequested}, "no-such-secret", false},
		{"creation", fields{"volumeCreation": with(secret)}, "no-such-secret", false},
		{"placing", fields{"volumeCreation": with(nowhere)}, "not scheduled: 0/", false},
		{"staging", fields{"volumeCreation": asRequested, "volumeStaging": secret}, "no-such-secret", true},
		{"pulling", fields{"volumeCreation": asRequested, "volumeStaging": image}, "tarn.invalid/no-such-image", true},
		{"unstaging", fields{"volumeCreation": asRequested, "volumeUnstaging": secret}, "no-such-secret", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, "kept-"+c.name)
			sections := fields{"volumeStaging": greeting, "volumeDeletion": works.section(nil)}
			maps.Copy(sections, c.sections)
			s.create(s.provisioner(sections))
			s.class(corev1.PersistentVolumeReclaimDelete)
			claim := s.claim("data")
			if c.used {
				s.bound(claim)
				pod := s.consumer("user", claim.Name, stays)
				if c.name == "unstaging" {
					s.ready(pod)
					s.delete(pod)
				}
			}
			s.step = 15 * time.Second
			s.told(claim, "PodWaiting", "waits: ", c.want)
			s.step = soon + time.Minute // the pod's deadline is part of the end
			maps.Copy(sections, fields{"volumeStaging": greeting, "volumeUnstaging": works.section(nil), "volumeValidation": works.section(nil), "volumeCreation": asRequested})
			s.edit(s.provisioner(sections))
		})
	}
}
