package podvol

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/jinja"
)

// Variables by which a staging template learns how a volume is to be mounted.
const (
	varMountOptions = "mountOptions"
	varFSType       = "fsType"
	varVolume       = "pv"
	varParams       = "params"
	varClass        = "sc"
)

// FSTypeParameter is the parameter of a StorageClass that says which file system its
// volumes are to have; the name is Kubernetes' own.
const FSTypeParameter = "csi.storage.k8s.io/fstype"

// checkRead refuses a volume that asks for a file system, or for mount options, of which
// the provisioner's staging takes no notice: whoever asked would believe to have it. Nor
// could the node agent give the options that the kernel keeps for each mount, like
// noexec: the container runtime binds what it is given once more, with its own.
func checkRead(p *pavv1.PavProvisioner, vol *corev1.PersistentVolume) error {
	options, fsType := vol.Spec.MountOptions, vol.Spec.CSI.FSType
	if modeOf(vol) == corev1.PersistentVolumeBlock || len(options) == 0 && fsType == "" {
		return nil
	}
	object, err := decodeRaw(p.Spec.VolumeStaging)
	if err != nil {
		return &StepError{Step: tarnv1.StepStaging, Reason: ReasonInvalid, Message: fmt.Sprintf("spec.volumeStaging: %v", err)}
	}
	read := namesIn(object)
	refuse := func(field, value, variable string) error {
		return &StepError{Step: tarnv1.StepStaging, Reason: ReasonVolumeRefused, Message: fmt.Sprintf(
			"PersistentVolume %q: %s is %q, of which spec.volumeStaging of PavProvisioner %q takes no notice; remove it from the volume (and its StorageClass), or have the template use %s",
			vol.Name, field, value, p.Name, variable)}
	}
	if slices.Contains(read, varVolume) {
		return nil // all is in there
	}
	if len(options) > 0 && !slices.Contains(read, varMountOptions) {
		return refuse("spec.mountOptions", strings.Join(options, ","), varMountOptions)
	}
	asParameter := vol.Spec.CSI.VolumeAttributes[FSTypeParameter] != "" && slices.Contains(read, varParams)
	if fsType != "" && !asParameter && !slices.Contains(read, varFSType) {
		return refuse("spec.csi.fsType", fsType, varFSType)
	}
	return nil
}

// namesIn gives the variables that the templates of a section read.
func namesIn(value any) []string {
	var names []string
	switch value := value.(type) {
	case string:
		if template, err := jinja.Parse(value); err == nil {
			names = template.Globals()
		}
	case []any:
		for _, item := range value {
			names = append(names, namesIn(item)...)
		}
	case map[string]any:
		for _, item := range value {
			names = append(names, namesIn(item)...)
		}
	}
	return names
}
