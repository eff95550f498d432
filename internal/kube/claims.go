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

// VolumeNamed gives the index values of a claim in an index by volume: the bucket of its
// spec.volumeName, or nothing if that is empty.
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
	return addIndex(ctx, mgr, &corev1.PersistentVolumeClaim{}, ClaimsByVolume, VolumeNamed)
}

// ClaimsNaming gives the claims whose spec.volumeName is a volume's name. It reads them from a
// cache with the index ClaimsByVolume. The claims share memory with the cache and must not be
// changed.
func ClaimsNaming(ctx context.Context, cached client.Reader, name string) ([]corev1.PersistentVolumeClaim, error) {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := cached.List(ctx, claims, client.MatchingFields{ClaimsByVolume: bucket(name)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the claims that name volume %s: %w", name, err)
	}
	return slices.DeleteFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName != name }), nil
}

// UIDOf gives the index values of a claim in an index by UID: the bucket of its UID. ClaimByUID
// reads such an index.
func UIDOf(o client.Object) []string { return []string{bucket(string(o.GetUID()))} }

// ClaimByUID finds a claim by its UID in an index of claims by UIDOf; nil if there is none.
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

// Claims finds the claims that still need a volume.
type Claims struct {
	// Cached has the index ClaimsByVolume.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
}

// Keeping gives a claim for whose sake the storage of a volume must not be destroyed, or nil.
// Argument vol is the volume as just read live, or nil if it does not exist. Argument maker is the
// claim that the volume was made for, or nil if unknown. It counts if the volume points at no
// claim.
//
// The claim that the volume points at is read live. A binder writes the claimRef before it binds
// the claim, so a claim that is about to get the volume is always seen.
//
// A claim may also name a volume that points at no claim, or that was removed by force. A claimRef
// can be cleared under a bound claim, or lost in a restore. The API server cannot select claims by
// volume, so Keeping finds them in the cache and confirms them live. A claim that is not in the
// cache yet was made by hand, for a volume that was already being deleted.
//
// A released volume that points at a deleted claim is kept by three kinds of claim. The binder has
// bound the claim to it, or the claim has the UID in the claimRef, or it has the UID of the maker.
// The last covers a mistake in a rewritten claimRef. A claim that merely names another claim's
// volume keeps nothing.
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

// Naming gives the claims whose spec.volumeName is a volume's name, whatever their phase. The API
// server cannot select claims by volume, so Naming finds them in the cache and confirms them live.
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

// Pods gives the pods, read live, that have not ended and may use a volume. A pod may use it
// through the deleted claim that the volume points at (ref, or nil), or through a claim that names
// the volume. A claimRef can be rewritten under a running pod: that pod's claim still names the
// volume, though the binder calls it Lost.
func (c Claims) Pods(ctx context.Context, ref *corev1.ObjectReference, naming []*corev1.PersistentVolumeClaim) ([]corev1.Pod, error) {
	// The names of the claims through which pods may use the volume, each with the claim that has
	// that name now.
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

// Started gives a pod that has a node and may use a released volume, or nil. A claim that is
// deleted by force, or loses its volume, leaves its pods behind. A pod without a node has not
// started, and can no longer start. Argument vol is the volume as just read live.
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
