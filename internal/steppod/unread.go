package steppod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/jinja"
)

// Variables that give a staging template the mount options of a volume.
const (
	varMountOptions = "mountOptions"
	varFSType       = "fsType"
	varVolume       = "pv"
	varParams       = "params"
	varClass        = "sc"
	varReadOnly     = "readOnly"
	varSource       = "source"
)

// FSTypeParameter is the parameter of a StorageClass that sets the file system of its volumes. The
// name is Kubernetes' own.
const FSTypeParameter = "csi.storage.k8s.io/fstype"

// unreadOptions is a warning for a volume that asks for a file system or for mount options which
// the provisioner's staging never reads. Without it, the user would believe that they apply. It is
// empty if there is nothing to warn of.
//
// The volume is staged all the same, as a CSI driver does with options it does not know. The node
// agent cannot apply per-mount options like noexec either: the container runtime bind-mounts the
// volume again, with its own options.
func unreadOptions(p *pavv1.PavProvisioner, vol *corev1.PersistentVolume) (string, error) {
	options, fsType := vol.Spec.MountOptions, vol.Spec.CSI.FSType
	if modeOf(vol) == corev1.PersistentVolumeBlock || len(options) == 0 && fsType == "" {
		return "", nil
	}
	object, err := decodeRaw(p.Spec.VolumeStaging)
	if err != nil {
		return "", failed(tarnv1.StepStaging, ReasonInvalid, "spec.volumeStaging: %v", err)
	}
	read := namesIn(object)
	if slices.Contains(read, varVolume) {
		return "", nil // all is in there
	}
	var unread, variables []string
	if len(options) > 0 && !slices.Contains(read, varMountOptions) {
		unread, variables = append(unread, fmt.Sprintf("spec.mountOptions %q", strings.Join(options, ","))), append(variables, varMountOptions)
	}
	asParameter := vol.Spec.CSI.VolumeAttributes[FSTypeParameter] != "" && slices.Contains(read, varParams)
	if fsType != "" && !asParameter && !slices.Contains(read, varFSType) {
		unread, variables = append(unread, fmt.Sprintf("spec.csi.fsType %q", fsType)), append(variables, varFSType)
	}
	if len(unread) == 0 {
		return "", nil
	}
	return fmt.Sprintf("PersistentVolume %q is staged without its %s: spec.volumeStaging of PavProvisioner %q does not use it; let the template read %s, or remove it from the volume (and its StorageClass)",
		vol.Name, strings.Join(unread, " and "), p.Name, strings.Join(variables, " and ")), nil
}

// StagesApart says whether a node stages a volume separately for pods that only read it. It does if
// a template of staging or unstaging reads readOnly. Otherwise all pods of a node share one stage,
// and the mounts of reading pods are read-only.
func StagesApart(p *pavv1.PavProvisioner) bool {
	for _, section := range []*apiextensionsv1.JSON{p.Spec.VolumeStaging, p.Spec.VolumeUnstaging} {
		if object, err := decodeRaw(section); err == nil && slices.Contains(namesIn(object), varReadOnly) {
			return true
		}
	}
	return false
}

// namesIn gives the variables that the templates of a section read.
func namesIn(value any) []string {
	var names []string
	eachText(value, func(text string) {
		if template, err := jinja.Parse(text); err == nil {
			names = append(names, template.Reads()...)
		}
	})
	return names
}

// Parameters of a StorageClass in which a CSI sidecar finds the Secret for a call.
const (
	sidecarPrefix   = "csi.storage.k8s.io/"
	secretParameter = "-secret-name"
)

// checkSecrets rejects a volume that names a Secret for CSI calls, if no template of the
// provisioner reads the volume. Staging pods get the Secret of nodePublishSecretRef without that.
func checkSecrets(p *pavv1.PavProvisioner, vol *corev1.PersistentVolume) error {
	csi := vol.Spec.CSI
	for _, s := range []struct {
		field string
		ref   *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", csi.ControllerPublishSecretRef}, {"nodeStageSecretRef", csi.NodeStageSecretRef},
		{"controllerExpandSecretRef", csi.ControllerExpandSecretRef}, {"nodeExpandSecretRef", csi.NodeExpandSecretRef},
	} {
		if s.ref == nil || reads(p, varVolume) {
			continue
		}
		return failed(tarnv1.StepStaging, ReasonVolumeRefused,
			"PersistentVolume %q: spec.csi.%s is %q, which no template of PavProvisioner %q reads, so no pod gets that Secret; create the volume again without it, or let the template of a pod read pv.spec.csi.%s and mount the Secret",
			vol.Name, s.field, s.ref.Namespace+"/"+s.ref.Name, p.Name, s.field)
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

// ReadsSource says whether the creation of a provisioner reads the source of a volume. Without that,
// a claim with a source would get an empty volume.
func ReadsSource(p *pavv1.PavProvisioner) bool {
	object, err := decodeRaw(p.Spec.VolumeCreation)
	return err == nil && slices.Contains(namesIn(object), varSource)
}
