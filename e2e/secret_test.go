//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// A class or volume may name a Secret that another driver's sidecars would read. Tarn has no such
// sidecar, and rejects it with a message. Otherwise a volume would be made, or staged, without its
// key.
func TestASecretThatNoTemplateReadsIsRefused(t *testing.T) {
	t.Parallel()
	const parameter = "csi.storage.k8s.io/node-stage-secret-name"
	s := begin(t, "secret")
	sections := fields{"volumeCreation": asRequested, "volumeStaging": greeting}
	s.create(s.provisioner(sections))
	class := s.class(corev1.PersistentVolumeReclaimDelete)
	s.remove(class)
	class.ResourceVersion, class.UID = "", ""
	class.Parameters = map[string]string{parameter: "key"}
	s.create(class)

	claim := s.claim("data")
	unread := `StorageClass "` + class.Name + `" has parameter "` + parameter + `" with value "key", which no template of PavProvisioner "` + s.name + `" reads`
	s.told(claim, "ProvisioningFailed", unread, "let the template of a pod read params['"+parameter+"'] and mount the Secret")
	s.explainsClaim(claim.Name, unread)
	byHand := s.handWritten("by-hand", "shelf-7", func(vol *corev1.PersistentVolume) {
		vol.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: s.name, Name: "key"}
	})
	pod := s.consumer("reader", byHand.Name, "grep -q hello /data/greeting")
	unreadToo := `PersistentVolume "` + byHand.Spec.VolumeName + `": spec.csi.nodeStageSecretRef is "` + s.name + `/key", which no template of PavProvisioner "` + s.name + `" reads`
	s.told(pod, "FailedMount", unreadToo, "read pv.spec.csi.nodeStageSecretRef and mount the Secret")
	s.explains("pod", s.name+"/"+pod.Name, unreadToo)
	s.never(tarn.StepCreation, tarn.StepStaging, tarn.StepUnstaging)

	// Both messages name this remedy.
	sections["volumeStaging"] = script{text: `mkdir /pav/volume && echo hello {{ (params['` + parameter + `'] or pv.spec.csi.nodeStageSecretRef.name)|tobash }} > /pav/volume/greeting`}.section(nil)
	s.edit(s.provisioner(sections))
	s.succeeded(pod)
	s.bound(claim)
	s.remove(pod)
	s.remove(byHand)
	s.remove(claim)
}
