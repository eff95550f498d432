package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/volume"
)

// VolumeNamed is what an index of claims by volume holds of one: the bucket of the name
// in its spec.volumeName, nothing where that is empty.
func VolumeNamed(o client.Object) []string {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.VolumeName == "" {
		return nil
	}
	return []string{bucket(claim.Spec.VolumeName)}
}

// ClaimsByVolume is the name of the index of claims by VolumeNamed. ClaimsNaming reads it.
const ClaimsByVolume = "claims.volume"

// IndexClaims adds the index ClaimsByVolume to a manager. Several controllers of one
// manager may have it, see Shared.
func IndexClaims(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.PersistentVolumeClaim{}, ClaimsByVolume, VolumeNamed); err != nil {
		return fmt.Errorf("adding index %s of PersistentVolumeClaim: %w", ClaimsByVolume, err)
	}
	return nil
}

// ClaimsNaming gives the claims whose spec.volumeName is a volume's name, from a cache
// with the index ClaimsByVolume. They share memory with the cache and must not be changed.
func ClaimsNaming(ctx context.Context, cached client.Reader, name string) ([]corev1.PersistentVolumeClaim, error) {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := cached.List(ctx, claims, client.MatchingFields{ClaimsByVolume: bucket(name)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the claims that name volume %s: %w", name, err)
	}
	return slices.DeleteFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName != name }), nil
}

// UIDOf is what an index of claims by uid holds of one: the bucket of its uid. ClaimByUID
// reads such an index.
func UIDOf(o client.Object) []string { return []string{bucket(string(o.GetUID()))} }

// ClaimByUID finds a claim by its uid in an index of claims by UIDOf; nil if there is none.
func ClaimByUID(ctx context.Context, cached client.Reader, index string, uid types.UID) (*corev1.PersistentVolumeClaim, error) {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := cached.List(ctx, claims, client.MatchingFields{index: bucket(string(uid))}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing claims with uid %s: %w", uid, err)
	}
	for i := range claims.Items {
		if claims.Items[i].UID == uid {
			return claims.Items[i].DeepCopy(), nil
		}
	}
	return nil, nil
}

// Claims finds out which claim a volume is still somebody's by.
type Claims struct {
	// Cached has the index ClaimsByVolume.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
}

// Keeping gives a claim for whose sake the storage of a volume must not be destroyed,
// nil if there is none. vol is the volume as it was just read live, nil where it does
// not exist; maker is the claim it was made for, which counts where the volume points at
// none; nil if that is not known.
//
// The claim that the volume points at is read live. So a claim that a binder is about to
// give the volume is always seen, as the volume points at it first.
//
// A volume that points at none, or was removed by force, may still be the one that a
// claim names: a claimRef can be cleared under a bound claim, or lost in a restore. The
// API server cannot be asked for the claims of a volume, so these are found in the cache
// and confirmed live. One of them that the cache does not have yet was made by hand, for
// a volume that was going already.
//
// A released volume that points at a claim which is gone is the claim's alone that the
// binder has bound to it, or that has the uid which the volume points at or was made for, as
// after a slip in writing its claimRef: who merely names another's volume keeps nothing.
func (c Claims) Keeping(ctx context.Context, name string, vol *corev1.PersistentVolume, maker *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	reference, orphaned := maker, true
	if vol != nil && vol.Spec.ClaimRef != nil {
		reference, orphaned = vol.Spec.ClaimRef, vol.Status.Phase != corev1.VolumeReleased
	}
	if reference != nil {
		claim, err := Get(ctx, c.Live, client.ObjectKey{Namespace: reference.Namespace, Name: reference.Name}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return nil, err
		}
		meant := claim != nil && (reference.UID == "" || claim.UID == reference.UID)
		if meant && (claim.Spec.VolumeName == "" || claim.Spec.VolumeName == name) {
			return claim, nil
		}
	}
	claims, err := c.Naming(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if orphaned || claim.Status.Phase == corev1.ClaimBound || claim.UID == reference.UID || maker != nil && claim.UID == maker.UID {
			return claim, nil
		}
	}
	return nil, nil
}

// Naming gives the claims whose spec.volumeName is a volume's name, whatever their phase:
// found in the cache, as the API server cannot be asked for them, and confirmed live.
func (c Claims) Naming(ctx context.Context, name string) ([]*corev1.PersistentVolumeClaim, error) {
	cached, err := ClaimsNaming(ctx, c.Cached, name)
	if err != nil {
		return nil, err
	}
	var claims []*corev1.PersistentVolumeClaim
	for i := range cached {
		live, err := Get(ctx, c.Live, client.ObjectKeyFromObject(&cached[i]), &corev1.PersistentVolumeClaim{})
		if err != nil {
			return nil, err
		}
		if live != nil && live.Spec.VolumeName == name {
			claims = append(claims, live)
		}
	}
	return claims, nil
}

// Pods gives the pods, read live, that have not ended and may use a volume: by the name
// of the claim it points at, nil for none, which is gone, or by that of one which names
// it. A claimRef can be rewritten under a running pod: that pod's claim still names the
// volume, though the binder calls it Lost.
func (c Claims) Pods(ctx context.Context, ref *corev1.ObjectReference, naming []*corev1.PersistentVolumeClaim) ([]corev1.Pod, error) {
	// The claims by which pods may use the volume, and who has the name of each now.
	successors := map[client.ObjectKey]*corev1.PersistentVolumeClaim{}
	var keys []client.ObjectKey
	if ref != nil {
		key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
		successor, err := Get(ctx, c.Live, key, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return nil, err
		}
		keys, successors[key] = append(keys, key), successor
	}
	for _, claim := range naming {
		key := client.ObjectKeyFromObject(claim)
		if _, known := successors[key]; !known {
			keys = append(keys, key)
		}
		if successors[key] = claim; volume.WasBound(claim) { // its own pods, not those of a former one alone
			successors[key] = nil
		}
	}
	var using []corev1.Pod
	for _, key := range keys {
		pods := &corev1.PodList{}
		if err := c.Live.List(ctx, pods, client.InNamespace(key.Namespace)); err != nil {
			return nil, fmt.Errorf("listing the pods of namespace %s: %w", key.Namespace, err)
		}
		for i := range pods.Items {
			if volume.UsesFormer(&pods.Items[i], key.Name, successors[key]) {
				using = append(using, pods.Items[i])
			}
		}
	}
	return using, nil
}

// Started gives a pod that was given a node and may use a released volume, nil if there
// is none: a claim that is removed by force, or robbed of its volume, leaves its pods
// behind. A pod without a node has not begun, and cannot any more. vol is the volume as
// it was just read live.
func (c Claims) Started(ctx context.Context, vol *corev1.PersistentVolume) (*corev1.Pod, error) {
	naming, err := c.Naming(ctx, vol.Name)
	if err != nil {
		return nil, err
	}
	pods, err := c.Pods(ctx, vol.Spec.ClaimRef, naming)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			return &pods[i], nil
		}
	}
	return nil, nil
}
