package steppod

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// StaticVars is the context of volumeValidation for a volume that was written by hand. The
// requested capacity is that of the volume, and there is no class.
func StaticVars(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (map[string]any, error) {
	vars, err := volumeVars(vol, claim)
	if err != nil {
		return nil, err
	}
	bytes := volume.Bytes(vol.Spec.Capacity[corev1.ResourceStorage])
	vars["requestedVolumeMode"] = string(modeOf(vol))
	vars["requestedAccessModes"] = texts(claim.Spec.AccessModes)
	vars["requestedMinCapacity"], vars["requestedMaxCapacity"] = bytes, bytes
	return vars, nil
}

// PrepareStatic evaluates volumeValidation for a volume that was written by hand, and checks the
// volume against it. A volume that does not fit gives a StepError with ReasonVolumeRefused. A
// provisioner without volumeValidation accepts every volume.
func (s *Steps) PrepareStatic(ctx context.Context, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (*Prepared, error) {
	if p.Spec.VolumeValidation == nil {
		return &Prepared{}, nil
	}
	vars, err := StaticVars(vol, claim)
	if err != nil {
		return nil, err
	}
	section, err := s.evaluate(ctx, tarnv1.StepValidation, p, claim.Namespace, vars)
	if err != nil {
		return nil, err
	}
	if err := checkVolume(p.Name, vol, claim, section); err != nil {
		return nil, err
	}
	o := order{
		step: tarnv1.StepValidation, name: PodName(tarnv1.StepValidation, stage.UID, 1), provisioner: p.Name, volume: vol.Name,
		owner: ownerReference("PavStage", stage), uidLabel: tarnv1.LabelStage,
	}
	if p.Spec.Topology == pavv1.TopologyNode {
		o.nodes = onNode(stage.Spec.NodeName)
	}
	return s.prepare(o, section)
}

// checkVolume checks a volume that was written by hand against an evaluated volumeValidation, in
// the order of checkClaim. It checks the access modes of the claim, not all those of the volume.
func checkVolume(provisioner string, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, section *evaluatedSection) error {
	refuse := func(format string, args ...any) error {
		return &StepError{Step: tarnv1.StepValidation, Reason: ReasonVolumeRefused, Message: fmt.Sprintf("PersistentVolume %q: ", vol.Name) + fmt.Sprintf(format, args...)}
	}
	least, most, err := limitsOf(section)
	if err != nil {
		return err
	}
	if modes := modesIn(section); !slices.Contains(modes, modeOf(vol)) {
		return refuse("spec.volumeMode is %s, PavProvisioner %q has %s in spec.volumeValidation.volumeModes; correct one of them", modeOf(vol), provisioner, join(modes))
	}
	for _, mode := range claim.Spec.AccessModes {
		if section.AccessModes != nil && !slices.Contains(section.AccessModes, mode) {
			return refuse("claim %s/%s has %s in spec.accessModes, PavProvisioner %q has %s in spec.volumeValidation.accessModes; correct one of them",
				claim.Namespace, claim.Name, mode, provisioner, join(section.AccessModes))
		}
	}
	bytes := volume.Bytes(vol.Spec.Capacity[corev1.ResourceStorage])
	if most != nil && bytes > *most {
		return refuse("spec.capacity.storage is %d bytes, PavProvisioner %q has %d in spec.volumeValidation.maxCapacity; correct one of them", bytes, provisioner, *most)
	}
	if least != nil && bytes < *least {
		return refuse("spec.capacity.storage is %d bytes, PavProvisioner %q has %d in spec.volumeValidation.minCapacity; correct one of them", bytes, provisioner, *least)
	}
	return nil
}
