package steppod

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Parameters of a StorageClass that name the Secret of its volumes: the kubelet reads it, and the
// staging pod finds it in /pav/secrets. The names are Kubernetes' own.
const (
	SecretNameParameter      = sidecarPrefix + "node-publish" + secretParameter
	SecretNamespaceParameter = sidecarPrefix + "node-publish-secret-namespace"
)

const annotationVariable = "pvc.annotations['"

// namesSecret says whether a class names a Secret for staging. It needs both parameters.
func namesSecret(parameters map[string]string) bool {
	return parameters[SecretNameParameter] != "" && parameters[SecretNamespaceParameter] != ""
}

// SecretPerClaim says whether the Secret that a class names depends on the claim.
func SecretPerClaim(parameters map[string]string) bool {
	return namesSecret(parameters) && strings.Contains(parameters[SecretNameParameter]+parameters[SecretNamespaceParameter], "${pvc.")
}

// SecretOf gives the Secret that a class names for the volume of a claim; nil if it names none. The
// variables are those of Kubernetes' external-provisioner. Users write annotations, so a namespace
// cannot contain one.
func SecretOf(class *storagev1.StorageClass, volume string, claim *corev1.PersistentVolumeClaim) (*corev1.SecretReference, error) {
	if !namesSecret(class.Parameters) {
		return nil, nil
	}
	known := map[string]string{"pv.name": volume, "pvc.namespace": claim.Namespace}
	namespace, err := resolveName(class, SecretNamespaceParameter, known, validation.IsDNS1123Label)
	if err != nil {
		return nil, err
	}
	known["pvc.name"] = claim.Name
	for key, value := range claim.Annotations {
		known[annotationVariable+key+"']"] = value
	}
	name, err := resolveName(class, SecretNameParameter, known, validation.IsDNS1123Subdomain)
	if err != nil {
		return nil, err
	}
	return &corev1.SecretReference{Namespace: namespace, Name: name}, nil
}

// resolveName replaces the variables in a parameter of a class, and checks the name.
func resolveName(class *storagev1.StorageClass, parameter string, known map[string]string, check func(string) []string) (string, error) {
	template := class.Parameters[parameter]
	var missing []string
	name := os.Expand(template, func(variable string) string {
		value, ok := known[variable]
		if !ok {
			missing = append(missing, variable)
		}
		return value
	})
	about := fmt.Sprintf("StorageClass %q: parameter %q is %q", class.Name, parameter, template)
	if len(missing) > 0 {
		key, isAnnotation := strings.CutPrefix(missing[0], annotationVariable)
		if isAnnotation && parameter == SecretNameParameter {
			return "", fmt.Errorf("%s, but the claim has no annotation %q; set it to the name of a Secret", about, strings.TrimSuffix(key, "']"))
		}
		return "", fmt.Errorf("%s, and there is no variable %q; use %s", about, missing[0], variables(parameter))
	}
	if wrong := check(name); len(wrong) > 0 {
		return "", fmt.Errorf("%s, which gives %q for this claim: %s; correct the claim, or create the class again", about, name, strings.Join(wrong, "; "))
	}
	return name, nil
}

func variables(parameter string) string {
	if parameter == SecretNamespaceParameter {
		return "${pv.name} or ${pvc.namespace}"
	}
	return "${pv.name}, ${pvc.name}, ${pvc.namespace} or ${pvc.annotations['KEY']}"
}

// checkOwnSecret rejects a volume that was made with the Secret of another claim: its data came
// from a pool or were recycled, and the Secret may be another tenant's.
func checkOwnSecret(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	ref, parameters := vol.Spec.CSI.NodePublishSecretRef, vol.Spec.CSI.VolumeAttributes
	if ref == nil || !SecretPerClaim(parameters) || vol.Name == volumePrefix+string(claim.UID) {
		return nil
	}
	class := &storagev1.StorageClass{Parameters: parameters}
	class.Name = vol.Spec.StorageClassName
	if own, err := SecretOf(class, vol.Name, claim); err == nil && *own == *ref {
		return nil
	}
	return failed(tarnv1.StepStaging, ReasonVolumeRefused,
		"PersistentVolume %q was made with Secret %q for another claim, and its StorageClass %q gives each claim a Secret of its own; use another volume for claim %s/%s",
		vol.Name, ref.Namespace+"/"+ref.Name, class.Name, claim.Namespace, claim.Name)
}

// volumePrefix and the UID of a claim are the name of the volume that was made for it.
const volumePrefix = "pvc-"

// UnreadSecret gives the parameter of a class that names a Secret, although no template of the
// provisioner reads class parameters. It is empty if there is none. Tarn has no sidecar that would
// read the Secret, so the author of the class would wrongly believe that it is used. A template
// that reads any parameter may compose this one's name, so it counts as a reader.
func UnreadSecret(p *pavv1.PavProvisioner, class *storagev1.StorageClass) string {
	for _, name := range slices.Sorted(maps.Keys(class.Parameters)) {
		switch {
		case !strings.HasPrefix(name, sidecarPrefix), !strings.HasSuffix(name, secretParameter), reads(p, varParams, varClass, varVolume):
		case name == SecretNameParameter && namesSecret(class.Parameters):
		case name == SecretNameParameter:
			return fmt.Sprintf("StorageClass %q has parameter %q without %q, so no pod gets that Secret; create the class again with both", class.Name, name, SecretNamespaceParameter)
		default:
			return fmt.Sprintf("StorageClass %q has parameter %q with value %q, which no template of PavProvisioner %q reads, so no pod gets that Secret; create the class again without it (a class cannot be changed), or let the template of a pod read params['%s'] and mount the Secret",
				class.Name, name, class.Parameters[name], p.Name, name)
		}
	}
	return ""
}
