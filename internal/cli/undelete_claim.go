package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// knownSince returns a time at which the volume's claim existed, or after which it was created. It
// is the creation of the claim or of the volume, whichever is later. A volume is only given to a
// claim that exists, so its claim cannot have ended before the volume was created.
func knownSince(vol *corev1.PersistentVolume, memory *volume.ClaimMemory) metav1.Time {
	if memory != nil && vol.CreationTimestamp.Before(&memory.Created) {
		return memory.Created
	}
	return vol.CreationTimestamp
}

// reservedFor says whether a volume is reserved by name for a claim that does not exist yet.
func reservedFor(vol *corev1.PersistentVolume, target client.ObjectKey) bool {
	ref := vol.Spec.ClaimRef
	return ref != nil && ref.UID == "" && ref.Namespace == target.Namespace && ref.Name == target.Name
}

// obstacle says why a volume cannot be given to a new claim, nil if it can.
func obstacle(vol *corev1.PersistentVolume, record *tarnv1.PavVolume, target client.ObjectKey) error {
	ref := vol.Spec.ClaimRef
	switch {
	case vol.DeletionTimestamp != nil:
		return fmt.Errorf("PersistentVolume %s is being deleted; it cannot be restored", vol.Name)
	case record != nil && (record.DeletionTimestamp != nil || record.Status.Phase != tarnv1.VolumeCreated):
		return fmt.Errorf("PavVolume %s is %s: its storage is being destroyed; run kubectl describe pavvolume %s to see the progress", vol.Name, cmp.Or(record.Status.Phase, "new"), vol.Name)
	case vol.Status.Phase == corev1.VolumeBound && ref != nil && ref.UID != "":
		return fmt.Errorf("PersistentVolume %s is Bound to claim %s/%s; if that claim has just been deleted, run the command again", vol.Name, ref.Namespace, ref.Name)
	case vol.Status.Phase == corev1.VolumeFailed:
		return fmt.Errorf("PersistentVolume %s is Failed (%s) and may be partly destroyed: check its data, then set its reclaim policy to Retain and remove the uid from its claimRef", vol.Name, cmp.Or(vol.Status.Message, "no message"))
	case vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle: // a recycler that has begun is not stopped by another policy
		return fmt.Errorf("the reclaim policy of PersistentVolume %s is Recycle and it is not in the trash: its data is gone, or is being deleted", vol.Name)
	case vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return fmt.Errorf("the reclaim policy of PersistentVolume %s is %s and it is not in the trash: its retention is over or it had none, and its data may be gone; to stop that: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'",
			vol.Name, vol.Spec.PersistentVolumeReclaimPolicy, vol.Name)
	case ref != nil && !volume.ReleasedFrom(vol) && ref.UID != "":
		return fmt.Errorf("PersistentVolume %s is %s, not Released; it belongs to claim %s/%s", vol.Name, vol.Status.Phase, ref.Namespace, ref.Name)
	case ref != nil && ref.UID == "" && !reservedFor(vol, target) && !volume.Held(vol):
		return fmt.Errorf("PersistentVolume %s is reserved for claim %s/%s; restore it as that claim, or remove its claimRef first", vol.Name, ref.Namespace, ref.Name)
	}
	return nil
}

// claimFor returns the claim to create for a volume. It uses what memoryOf found: the trash's copy
// of the claim, else the record's. If there is neither, it uses the volume alone. note is a remark
// for the user.
func claimFor(vol *corev1.PersistentVolume, memory *volume.ClaimMemory, target client.ObjectKey) (claim *corev1.PersistentVolumeClaim, note string) {
	if memory == nil {
		memory = &volume.ClaimMemory{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: vol.Spec.AccessModes, VolumeMode: vol.Spec.VolumeMode, StorageClassName: ptr.To(volume.ClassOfVolume(vol)),
			VolumeAttributesClassName: vol.Spec.VolumeAttributesClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: vol.Spec.Capacity[corev1.ResourceStorage]},
			},
		}}
		note = "note: only the volume describes the former claim; the claim's labels and annotations are unknown"
	}
	if memory.Cut {
		note = "note: the claim's labels and annotations were too large to be kept; they are missing"
	}
	claim = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: target.Namespace, Name: target.Name, Labels: memory.Labels, Annotations: memory.Annotations},
		Spec:       memory.Spec,
	}
	claim.Spec.VolumeName = vol.Name
	claim.Spec.DataSource, claim.Spec.DataSourceRef = nil, nil // the data is there already, and its source may be gone
	return claim, note
}

// memoryOf returns what is known of the volume's former claim, nil for nothing.
func memoryOf(vol *corev1.PersistentVolume, record *tarnv1.PavVolume) (*volume.ClaimMemory, error) {
	memory, err := volume.RememberedClaim(vol)
	if err != nil || memory != nil || record == nil {
		return memory, err
	}
	if len(record.Spec.ClaimSnapshot.Raw) == 0 {
		return nil, nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	if err := json.Unmarshal(record.Spec.ClaimSnapshot.Raw, claim); err != nil {
		return nil, fmt.Errorf("claimSnapshot of PavVolume %s is not a claim: %w", record.Name, err)
	}
	text, err := volume.RememberClaim(claim) // leaves out the annotations that binders set
	if err != nil {
		return nil, err
	}
	memory = &volume.ClaimMemory{}
	return memory, json.Unmarshal([]byte(text), memory)
}

// namespace restores every claim of a namespace that can be restored. It reports the others and
// continues.
func (u *undelete) namespace(ctx context.Context, name string) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := u.client.List(ctx, volumes); err != nil {
		return fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	of := map[string][]string{}
	u.mine = map[types.UID]bool{}
	for i := range volumes.Items {
		vol := &volumes.Items[i]
		ref := vol.Spec.ClaimRef
		if ref == nil || ref.Namespace != name {
			continue
		}
		u.mine[vol.UID] = true
		if kept(vol) || reservedHeld(vol) {
			of[ref.Name] = append(of[ref.Name], vol.Name)
		}
	}
	if len(of) == 0 {
		return fmt.Errorf("no volume of a claim of namespace %q can be restored; run tarn trash list to see what can", name)
	}
	var failures []error
	for _, claim := range slices.Sorted(maps.Keys(of)) {
		if vols := of[claim]; len(vols) > 1 {
			slices.Sort(vols)
			failures = append(failures, fmt.Errorf("claim %s/%s had several volumes; choose one with tarn undelete volume NAME: %s", name, claim, strings.Join(vols, ", ")))
			continue
		}
		if err := u.volume(ctx, of[claim][0], client.ObjectKey{}); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
