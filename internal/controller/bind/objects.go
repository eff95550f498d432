package bind

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"tarn.dev/tarn/internal/volume"
)

// volumeDraft is a volume on its way to its desired state. The first change copies its object.
type volumeDraft struct {
	object  *corev1.PersistentVolume
	changed bool
}

func (d *volumeDraft) edit() *corev1.PersistentVolume {
	if !d.changed {
		d.object, d.changed = d.object.DeepCopy(), true
	}
	return d.object
}

// maintain sets what in-tree plugins and their CSI successors rely on: annotation migrated-to, and
// finalizers.
func (d *volumeDraft) maintain() {
	by, dynamic := d.object.Annotations[volume.AnnProvisionedBy]
	if dynamic && migrationOutdated(d.object.Annotations, by) {
		setMigrated(&d.edit().Annotations, by)
	}
	if finalizers, changed := volume.KeptFinalizers(d.object); changed {
		d.edit().Finalizers = finalizers
	}
}

// link makes the volume point at a claim by its UID, and marks it as used. Pools recognize a used
// volume by annotation bound-by-controller too, but that is removed together with the claimRef.
func (d *volumeDraft) link(claim *corev1.PersistentVolumeClaim) {
	if volume.HeldBy(d.object, claim) {
		return
	}
	chosen := !volume.BoundTo(d.object, claim)
	v := d.edit()
	v.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name,
		UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	volume.Drawn(v)
	if chosen {
		annotate(&v.Annotations, volume.AnnBoundByController, volume.AnnYes)
	}
}

// unlink undoes link. A volume that a user reserved stays reserved.
func (d *volumeDraft) unlink() {
	v := d.edit()
	if _, ours := v.Annotations[volume.AnnBoundByController]; !ours {
		v.Spec.ClaimRef.UID, v.Spec.ClaimRef.ResourceVersion = "", ""
		return
	}
	v.Spec.ClaimRef = nil
	removeAnnotation(&v.Annotations, volume.AnnBoundByController)
}

// inPhase returns the volume with another phase, sharing the rest.
func inPhase(v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) *corev1.PersistentVolume {
	out := *v
	out.Status.Phase, out.Status.Message, out.Status.Reason = phase, message, ""
	return &out
}

// claimDraft is a claim on its way to its desired state.
type claimDraft struct {
	object  *corev1.PersistentVolumeClaim
	changed bool
}

func (d *claimDraft) edit() *corev1.PersistentVolumeClaim {
	if !d.changed {
		d.object, d.changed = d.object.DeepCopy(), true
	}
	return d.object
}

func (d *claimDraft) maintain() {
	if by := volume.ProvisionerOf(d.object); by != "" && migrationOutdated(d.object.Annotations, by) {
		setMigrated(&d.edit().Annotations, by)
	}
}

// link makes the claim name a volume, which cannot be changed later.
func (d *claimDraft) link(v *corev1.PersistentVolume) {
	if d.object.Spec.VolumeName != v.Name {
		c := d.edit()
		c.Spec.VolumeName = v.Name
		if _, said := c.Annotations[volume.AnnBoundByController]; !said {
			annotate(&c.Annotations, volume.AnnBoundByController, volume.AnnYes)
		}
	}
}

// note adds annotations to the claim.
func (d *claimDraft) note(notes map[string]string) {
	for key, value := range notes {
		annotate(&d.edit().Annotations, key, value)
	}
}

// completedNotes are the annotations of a claim whose binding is completed. They stay, whatever
// happens to the volume; nil if the claim has them.
func completedNotes(claim *corev1.PersistentVolumeClaim) map[string]string {
	if _, said := claim.Annotations[volume.AnnBindCompleted]; said {
		return nil
	}
	return map[string]string{volume.AnnBindCompleted: volume.AnnYes}
}

// callNotes are the annotations that hand a claim to the provisioner of its class; nil if it has
// them.
func callNotes(claim *corev1.PersistentVolumeClaim, provisioner, driver string) map[string]string {
	if claim.Annotations[volume.AnnProvisioner] == driver {
		return nil
	}
	notes := map[string]string{volume.AnnProvisioner: driver, volume.AnnBetaProvisioner: driver}
	if to := volume.MigratedTo(provisioner); to != "" {
		notes[volume.AnnMigratedTo] = to
	}
	return notes
}

// onto returns the claim with the status and annotations of a status write.
func (a WriteClaimStatus) onto(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := *claim
	out.Status = a.Claim.Status
	if len(a.Notes) > 0 {
		out.Annotations = maps.Clone(out.Annotations)
		for key, value := range a.Notes {
			annotate(&out.Annotations, key, value)
		}
	}
	return &out
}

// boundStatus is the claim with the status Bound to a volume, nil if it has that already. Once the
// claim is Bound, the resizer owns the capacity.
func boundStatus(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	out := *claim
	s := &out.Status
	if s.Phase != corev1.ClaimBound {
		s.Capacity = corev1.ResourceList{corev1.ResourceStorage: reportedCapacity(v)}
	}
	if s.Phase == corev1.ClaimPending || s.Phase == "" {
		s.CurrentVolumeAttributesClassName = nil
		if name := volume.AttributesClassOfVolume(v); name != "" {
			s.CurrentVolumeAttributesClassName = &name
		}
	}
	s.Phase = corev1.ClaimBound
	if !slices.Equal(s.AccessModes, v.Spec.AccessModes) {
		s.AccessModes = slices.Clone(v.Spec.AccessModes)
	}
	return unlessEqual(claim, &out)
}

// reportedCapacity is the capacity of the volume that the claim's status shows.
func reportedCapacity(v *corev1.PersistentVolume) resource.Quantity {
	if text, ok := v.Annotations[volume.AnnPreResizeCapacity]; ok {
		if q, err := resource.ParseQuantity(text); err == nil {
			return q
		}
	}
	return v.Spec.Capacity[corev1.ResourceStorage]
}

// emptyStatus is the claim with the status of one without a volume, nil if it has that already.
func emptyStatus(claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	out := *claim
	out.Status.Phase = phase
	out.Status.AccessModes, out.Status.Capacity, out.Status.CurrentVolumeAttributesClassName = nil, nil, nil
	return unlessEqual(claim, &out)
}

func unlessEqual(old, wanted *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if equality.Semantic.DeepEqual(&old.Status, &wanted.Status) {
		return nil
	}
	return wanted
}

// migrationOutdated says whether annotation migrated-to differs from what a provisioner's name requires. A
// driver that names itself there is right.
func migrationOutdated(annotations map[string]string, provisioner string) bool {
	has, wanted := annotations[volume.AnnMigratedTo], volume.MigratedTo(provisioner)
	return has != wanted && has != provisioner
}

func setMigrated(annotations *map[string]string, provisioner string) {
	if to := volume.MigratedTo(provisioner); to != "" {
		annotate(annotations, volume.AnnMigratedTo, to)
		return
	}
	removeAnnotation(annotations, volume.AnnMigratedTo)
}

func annotate(annotations *map[string]string, key, value string) {
	if *annotations == nil {
		*annotations = map[string]string{}
	}
	(*annotations)[key] = value
}

// removeAnnotation removes an annotation, and the map if it is then empty.
func removeAnnotation(annotations *map[string]string, key string) {
	maps.DeleteFunc(*annotations, func(k, _ string) bool { return k == key })
	if len(*annotations) == 0 {
		*annotations = nil
	}
}
