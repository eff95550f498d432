package steppod

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Parameters of a StorageClass in which a CSI sidecar finds the Secret for a call.
const (
	sidecarPrefix   = "csi.storage.k8s.io/"
	secretParameter = "-secret-name"
)

// UnreadSecret gives the parameter of a class that names a Secret, although no template of the
// provisioner reads class parameters. It is empty if there is none. Tarn has no sidecar that would
// read the Secret, so the author of the class would wrongly believe that it is used. A template
// that reads any parameter may compose this one's name, so it counts as a reader.
func UnreadSecret(p *pavv1.PavProvisioner, class *storagev1.StorageClass) string {
	for _, name := range slices.Sorted(maps.Keys(class.Parameters)) {
		if strings.HasPrefix(name, sidecarPrefix) && strings.HasSuffix(name, secretParameter) && !reads(p, varParams, varClass, varVolume) {
			return fmt.Sprintf("StorageClass %q has parameter %q with value %q, which no template of PavProvisioner %q reads, so no pod gets that Secret; create the class again without it (a class cannot be changed), or let the template of a pod read params['%s'] and mount the Secret",
				class.Name, name, class.Parameters[name], p.Name, name)
		}
	}
	return ""
}

// checkSecrets rejects a volume that names a Secret for CSI calls, if no template of the
// provisioner reads the volume.
func checkSecrets(p *pavv1.PavProvisioner, vol *corev1.PersistentVolume) error {
	csi := vol.Spec.CSI
	for _, s := range []struct {
		field string
		ref   *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", csi.ControllerPublishSecretRef}, {"nodeStageSecretRef", csi.NodeStageSecretRef},
		{"nodePublishSecretRef", csi.NodePublishSecretRef}, {"controllerExpandSecretRef", csi.ControllerExpandSecretRef},
		{"nodeExpandSecretRef", csi.NodeExpandSecretRef},
	} {
		if s.ref == nil || reads(p, varVolume) {
			continue
		}
		return &StepError{Step: tarnv1.StepStaging, Reason: ReasonVolumeRefused, Message: fmt.Sprintf(
			"PersistentVolume %q: spec.csi.%s is %q, which no template of PavProvisioner %q reads, so no pod gets that Secret; create the volume again without it, or let the template of a pod read pv.spec.csi.%s and mount the Secret",
			vol.Name, s.field, s.ref.Namespace+"/"+s.ref.Name, p.Name, s.field)}
	}
	return nil
}

// reads says whether a template of the provisioner reads one of some variables. If that cannot be
// determined, it is true.
func reads(p *pavv1.PavProvisioner, variables ...string) bool {
	return slices.ContainsFunc(sections(p), func(s rawSection) bool {
		object, err := decodeRaw(s.raw)
		return err != nil || slices.ContainsFunc(namesIn(object), func(name string) bool { return slices.Contains(variables, name) })
	})
}
