package steppod

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// RecordVars is the context of the templates of validation, creation and deletion, with the
// original's names. Variable source is defined for a volume that is made from another one. claim is
// the present claim; nil means the record's snapshot of it.
func RecordVars(record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim) (map[string]any, error) {
	claimObject, err := snapshot(record.Spec.ClaimSnapshot.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading claimSnapshot of PavVolume %s: %w", record.Name, err)
	}
	if claim != nil {
		if claimObject, err = toObject(claim, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")); err != nil {
			return nil, err
		}
	}
	class, err := snapshot(record.Spec.ClassSnapshot.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading classSnapshot of PavVolume %s: %w", record.Name, err)
	}
	params, ok := class["parameters"].(map[string]any)
	if !ok {
		params = map[string]any{}
	}
	vars := map[string]any{
		"requestedVolumeMode":  string(record.Spec.VolumeMode),
		"requestedAccessModes": texts(record.Spec.AccessModes),
		"requestedMinCapacity": record.Spec.RequestedMinCapacity,
		"requestedMaxCapacity": nil,
		"params":               params,
		varClass:               class,
		"pvc":                  claimObject,
		"defaultHandle":        DefaultHandle(record),
	}
	if most := record.Spec.RequestedMaxCapacity; most != nil {
		vars["requestedMaxCapacity"] = *most
	}
	if record.Spec.Source != nil {
		vars[varSource] = sourceVars(record.Spec.Source)
	}
	return vars, nil
}

// sourceVars is what templates know of the source of a volume. They get no labels or annotations of
// it: users of its namespace write those.
func sourceVars(source *tarnv1.PavVolumeSource) map[string]any {
	params := map[string]any{}
	for key, value := range source.Parameters {
		params[key] = value
	}
	return map[string]any{
		"kind": source.Kind, "namespace": source.Namespace, "name": source.Name, "handle": source.Handle,
		"capacity": source.Capacity, "volumeMode": string(source.VolumeMode), "node": source.NodeName, varParams: params,
	}
}

// ValidationVars is RecordVars without the default handle, because no handle is chosen yet.
func ValidationVars(record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim) (map[string]any, error) {
	vars, err := RecordVars(record, claim)
	delete(vars, "defaultHandle")
	return vars, err
}

// DeletionVars is RecordVars with the record's claim, handle and capacity, and whether the creation
// succeeded. A creation that failed before it set them is undone under its default handle, and with
// the size that the claim requested.
func DeletionVars(record *tarnv1.PavVolume) (map[string]any, error) {
	vars, err := RecordVars(record, nil)
	if err != nil {
		return nil, err
	}
	vars["handle"] = cmp.Or(record.Status.Handle, DefaultHandle(record))
	vars["capacity"] = cmp.Or(record.Status.Capacity, record.Spec.RequestedMinCapacity)
	vars["created"] = record.Status.Capacity > 0 // as in Created, until an undoing has ended
	return vars, nil
}

// StageVars is the context of the templates of staging and unstaging.
func StageVars(stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, node *corev1.Node) (map[string]any, error) {
	vars, err := volumeVars(vol, claim)
	if err != nil {
		return nil, err
	}
	if vars["node"], err = toObject(node, corev1.SchemeGroupVersion.WithKind("Node")); err != nil {
		return nil, err
	}
	vars["volumeMode"] = string(modeOf(vol))
	vars["accessModes"] = texts(claim.Spec.AccessModes)
	vars["capacity"] = volume.Bytes(vol.Spec.Capacity[corev1.ResourceStorage])
	vars[varReadOnly] = stage.Spec.ReadOnly
	vars[varMountOptions] = texts(vol.Spec.MountOptions)
	vars[varFSType] = vol.Spec.CSI.FSType
	return vars, nil
}

// volumeVars is the common part of every context of an existing volume.
func volumeVars(vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (map[string]any, error) {
	claimObject, err := toObject(claim, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if err != nil {
		return nil, err
	}
	object, err := toObject(vol, corev1.SchemeGroupVersion.WithKind("PersistentVolume"))
	if err != nil {
		return nil, err
	}
	params := map[string]any{}
	for key, value := range vol.Spec.CSI.VolumeAttributes {
		params[key] = value
	}
	return map[string]any{"pvc": claimObject, varVolume: object, varParams: params, "handle": vol.Spec.CSI.VolumeHandle}, nil
}

func modeOf(vol *corev1.PersistentVolume) corev1.PersistentVolumeMode {
	return ptr.Deref(vol.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
}

// DefaultHandle is the handle of a volume whose provisioner sets none.
func DefaultHandle(record *tarnv1.PavVolume) string { return "pvc-" + string(record.Spec.Claim.UID) }

// SnapshotClaim is the JSON of a claim for a record.
func SnapshotClaim(claim *corev1.PersistentVolumeClaim) ([]byte, error) {
	object, err := toObject(claim, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if err != nil {
		return nil, err
	}
	return encode(object)
}

// SnapshotClass is the JSON of a class for a record.
func SnapshotClass(class *storagev1.StorageClass) ([]byte, error) {
	object, err := toObject(class, storagev1.SchemeGroupVersion.WithKind("StorageClass"))
	if err != nil {
		return nil, err
	}
	return encode(object)
}

// encode writes JSON without escapes for HTML, which would make some objects several times as
// large.
func encode(object any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(object); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

func snapshot(raw []byte) (map[string]any, error) {
	object, err := decodeJSON(raw)
	if err != nil {
		return nil, err
	}
	fields, ok := object.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("must be a mapping, not %s", kindOf(object))
	}
	return fields, nil
}

// toObject gives the JSON form of an API object: names as in the API, absent fields absent. It
// leaves out managedFields, which only API servers use.
func toObject(object any, gvk schema.GroupVersionKind) (map[string]any, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("converting a %s: %w", gvk.Kind, err)
	}
	fields["apiVersion"], fields["kind"] = gvk.GroupVersion().String(), gvk.Kind
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
	dropNulls(fields)
	return fields, nil
}

func dropNulls(fields map[string]any) {
	for key, value := range fields {
		if value == nil {
			delete(fields, key)
			continue
		}
		if inner, ok := value.(map[string]any); ok {
			dropNulls(inner)
		}
	}
}

func texts[T ~string](items []T) []any {
	list := make([]any, len(items))
	for i, item := range items {
		list[i] = string(item)
	}
	return list
}
