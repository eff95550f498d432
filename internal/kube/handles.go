package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// HandleOf is what an index of PersistentVolumes by handle holds of one: the bucket of
// its driver and handle, nothing for what is no CSI volume.
func HandleOf(o client.Object) []string {
	vol, ok := o.(*corev1.PersistentVolume)
	if !ok || vol.Spec.CSI == nil {
		return nil
	}
	return []string{bucket(handleKey(vol.Spec.CSI.Driver, vol.Spec.CSI.VolumeHandle))}
}

func hasHandle(vol *corev1.PersistentVolume, driver, handle string) bool {
	return vol.Spec.CSI != nil && vol.Spec.CSI.Driver == driver && vol.Spec.CSI.VolumeHandle == handle
}

// A driver's name has no slash.
func handleKey(driver, handle string) string { return driver + "/" + handle }

// VolumesByHandle is the name of the index of PersistentVolumes by HandleOf.
const VolumesByHandle = "volumes.handle"

// IndexHandles adds the index VolumesByHandle to a manager. Several controllers of one
// manager may have it, see Shared.
func IndexHandles(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.PersistentVolume{}, VolumesByHandle, HandleOf); err != nil {
		return fmt.Errorf("adding index %s of PersistentVolume: %w", VolumesByHandle, err)
	}
	return nil
}

// Handles finds out who has a handle.
type Handles struct {
	// Cached has the index VolumesByHandle.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
}

// Volumes gives the names of the PersistentVolumes that have a driver's handle, but for
// the one named except. Those the cache has are confirmed.
func (h Handles) Volumes(ctx context.Context, driver, handle, except string) ([]string, error) {
	var list corev1.PersistentVolumeList
	key := handleKey(driver, handle)
	if err := h.Cached.List(ctx, &list, client.MatchingFields{VolumesByHandle: bucket(key)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the PersistentVolumes with handle %s: %w", key, err)
	}
	var names []string
	for i := range list.Items {
		name := list.Items[i].Name
		if name == except || !hasHandle(&list.Items[i], driver, handle) {
			continue
		}
		live, err := Get(ctx, h.Live, client.ObjectKey{Name: name}, &corev1.PersistentVolume{})
		if err != nil {
			return nil, err
		}
		if live != nil && hasHandle(live, driver, handle) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Holder names another volume that has a driver's handle: a PersistentVolume, or a
// PavVolume that is not disputed itself. It is empty if there is none. Records are read
// live: of two that write the same handle into their status and ask only then, one at
// least hears of the other.
func (h Handles) Holder(ctx context.Context, driver, handle, except string) (string, error) {
	volumes, err := h.Volumes(ctx, driver, handle, except)
	if err != nil {
		return "", err
	}
	if len(volumes) > 0 {
		return fmt.Sprintf("PersistentVolume %q", volumes[0]), nil
	}
	records := &tarnv1.PavVolumeList{}
	if err := h.Live.List(ctx, records, client.MatchingFields{"status.handle": handle}); err != nil {
		return "", fmt.Errorf("listing the PavVolumes with handle %q: %w", handle, err)
	}
	for i := range records.Items {
		r := &records.Items[i]
		if r.Name != except && r.Spec.Provisioner.Name == driver && r.Status.Phase != tarnv1.VolumeDisputed {
			return fmt.Sprintf("PavVolume %q of claim %s/%s", r.Name, r.Spec.Claim.Namespace, r.Spec.Claim.Name), nil
		}
	}
	return "", nil
}
