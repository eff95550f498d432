package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// HandleOf gives the index values of a PersistentVolume in an index by handle: the bucket of its
// driver and handle. A volume that is not CSI has none.
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

// The name of a driver contains no slash.
func handleKey(driver, handle string) string { return driver + "/" + handle }

// VolumesByHandle is the name of the index of PersistentVolumes by HandleOf.
const VolumesByHandle = "volumes.handle"

// IndexHandles adds the index VolumesByHandle to a manager. Several controllers of one
// manager may have it, see Shared.
func IndexHandles(ctx context.Context, mgr ctrl.Manager) error {
	return addIndex(ctx, mgr, &corev1.PersistentVolume{}, VolumesByHandle, HandleOf)
}

// recordKey is the index value of the handle that a record has, or that it gets by default.
func recordKey(r *tarnv1.PavVolume) string {
	return handleKey(r.Spec.Provisioner.Name, cmp.Or(r.Status.Handle, r.Name))
}

// HandleAwaited gives the index values of a PavVolume in an index by the handle it may wait for.
// That is the bucket of its driver and handle, if it is to be created or deleted under that handle.
func HandleAwaited(o client.Object) []string {
	r, ok := o.(*tarnv1.PavVolume)
	if !ok {
		return nil
	}
	switch r.Status.Phase {
	case "", tarnv1.VolumePending, tarnv1.VolumeValidating:
		if r.Status.Handle != "" {
			return []string{bucket(recordKey(r))}
		}
	case tarnv1.VolumeUndoing, tarnv1.VolumeDeleting:
		return []string{bucket(recordKey(r))}
	}
	return nil
}

// RecordsByHandleAwaited is the name of the index of PavVolumes by HandleAwaited.
const RecordsByHandleAwaited = "records.handle"

// IndexHandlesAwaited adds the index RecordsByHandleAwaited to a manager. Several
// controllers of one manager may have it, see Shared.
func IndexHandlesAwaited(ctx context.Context, mgr ctrl.Manager) error {
	return addIndex(ctx, mgr, &tarnv1.PavVolume{}, RecordsByHandleAwaited, HandleAwaited)
}

// Handles finds the volumes that have a handle.
type Handles struct {
	// Cached has the index VolumesByHandle.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
}

// Volumes gives the names of the PersistentVolumes with a driver's handle, except the one of that
// name. Volumes from the cache are confirmed live.
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

// Holder is a volume that has a handle.
type Holder struct {
	// Name is the name of the record and of the PersistentVolume.
	Name string
	// Going says that Tarn deletes its storage, or is about to. Undoing says that it does so
	// because the volume was never used.
	Going, Undoing bool
	// Since is when the record was created.
	Since metav1.Time
	words string
}

// String names the volume for messages.
func (h Holder) String() string { return h.words }

// Holders gives the volumes with a driver's handle, except the volume of that name. These are
// PersistentVolumes, and PavVolumes whose creation has begun and that are not disputed.
//
// It reads records live, and before the volumes. If two records write the same handle into their
// status before they call Holders, at least one of them sees the other.
func (h Handles) Holders(ctx context.Context, driver, handle, except string) ([]Holder, error) {
	records := &tarnv1.PavVolumeList{}
	if err := h.Live.List(ctx, records, client.MatchingFields{"status.handle": handle}); err != nil {
		return nil, fmt.Errorf("listing the PavVolumes with handle %q: %w", handle, err)
	}
	var holders []Holder
	for i := range records.Items {
		r := &records.Items[i]
		if r.Name == except || r.Spec.Provisioner.Name != driver || !holds(r.Status.Phase) {
			continue
		}
		holder, err := h.holder(ctx, r)
		if err != nil {
			return nil, err
		}
		holders = append(holders, holder)
	}
	volumes, err := h.Volumes(ctx, driver, handle, except)
	if err != nil {
		return nil, err
	}
	for _, name := range volumes {
		if !slices.ContainsFunc(holders, func(h Holder) bool { return h.Name == name }) {
			holders = append(holders, Holder{Name: name, words: fmt.Sprintf("PersistentVolume %q", name)})
		}
	}
	return holders, nil
}

// holds says whether a record in a phase may have storage under its handle. In an earlier phase,
// the record waits for the handle.
func holds(phase tarnv1.VolumePhase) bool {
	switch phase {
	case tarnv1.VolumeCreating, tarnv1.VolumeCreated, tarnv1.VolumeUndoing, tarnv1.VolumeDeleting:
		return true
	}
	return false
}

func (h Handles) holder(ctx context.Context, r *tarnv1.PavVolume) (Holder, error) {
	holder := Holder{
		Name: r.Name, Since: r.CreationTimestamp, Undoing: r.Status.Phase == tarnv1.VolumeUndoing,
		words: fmt.Sprintf("PavVolume %q of claim %s/%s", r.Name, r.Spec.Claim.Namespace, r.Spec.Claim.Name),
	}
	vol, err := Get(ctx, h.Live, client.ObjectKeyFromObject(r), &corev1.PersistentVolume{})
	if err != nil {
		return holder, err
	}
	if vol != nil && !hasHandle(vol, r.Spec.Provisioner.Name, r.Status.Handle) {
		vol = nil
	}
	if vol != nil {
		holder.words = fmt.Sprintf("PersistentVolume %q", r.Name)
	}
	holder.Going, err = h.going(ctx, r, vol)
	return holder, err
}

// going says whether Tarn deletes the storage of a record, or is about to, because its claim was
// deleted and nothing keeps it. vol is its PersistentVolume, or nil.
func (h Handles) going(ctx context.Context, r *tarnv1.PavVolume, vol *corev1.PersistentVolume) (bool, error) {
	if p := r.Status.Phase; p == tarnv1.VolumeUndoing || p == tarnv1.VolumeDeleting {
		return true, nil
	}
	ref := &corev1.ObjectReference{Namespace: r.Spec.Claim.Namespace, Name: r.Spec.Claim.Name, UID: r.Spec.Claim.UID}
	switch {
	case vol == nil && meta.IsStatusConditionTrue(r.Status.Conditions, tarnv1.ConditionProvisioned): // removed by force
		return r.DeletionTimestamp != nil, nil
	case vol == nil:
	case vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete,
		meta.IsStatusConditionFalse(r.Status.Conditions, tarnv1.ConditionDeletable): // it is kept, as a retention has it
		return false, nil
	case vol.DeletionTimestamp != nil:
		return true, nil
	case vol.Spec.ClaimRef == nil || vol.Spec.ClaimRef.UID == "":
		return false, nil
	default:
		ref = vol.Spec.ClaimRef
	}
	claim, err := Get(ctx, h.Live, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.PersistentVolumeClaim{})
	return err == nil && (claim == nil || claim.UID != ref.UID), err
}

// HandleWaiters gives the records that may wait for a PersistentVolume or PavVolume to be deleted
// or to change, because they have its handle.
func HandleWaiters(ctx context.Context, cached client.Reader, o client.Object) []reconcile.Request {
	var keys []string
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		keys = HandleOf(o)
	case *tarnv1.PavVolume:
		keys = []string{bucket(recordKey(o))}
	}
	var requests []reconcile.Request
	for _, key := range keys {
		list := &tarnv1.PavVolumeList{}
		if err := cached.List(ctx, list, client.MatchingFields{RecordsByHandleAwaited: key}, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing the PavVolumes that wait for a handle")
		}
		for i := range list.Items {
			if name := list.Items[i].Name; name != o.GetName() {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
			}
		}
	}
	return requests
}
