package bind

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/volume"
)

// doubt marks a claim and a volume as in doubt: the outcome of a write is unknown, so both must be
// read again. Either may be missing.
func (b *books) doubt(key claimKey, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key != (claimKey{}) && b.claims[key] != nil {
		b.unsure[key] = name
	}
	if b.volumes[name] != nil {
		b.doubtful[name] = true
		b.shelve(name)
	}
}

func (b *books) doubtOf(key claimKey) (name string, doubted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name, doubted = b.unsure[key]
	return name, doubted
}

func (b *books) isDoubtful(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.doubtful[name]
}

// sureOfClaim stores the API server's answer about a claim in doubt, nil for gone.
func (b *books) sureOfClaim(key claimKey, claim *corev1.PersistentVolumeClaim) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unsure, key)
	had := b.claims[key]
	switch {
	case had == nil:
		return wakes{}
	case claim == nil || claim.UID != had.UID:
		return b.afterClaim(had, nil, b.dropClaim(had))
	}
	return b.afterClaim(had, claim, b.putClaim(claim, false))
}

// sureOfVolume stores the API server's answer about a volume in doubt, nil for gone.
func (b *books) sureOfVolume(name string, v *corev1.PersistentVolume) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.doubtful, name)
	had := b.volumes[name]
	switch {
	case had == nil:
		return wakes{}
	case v == nil || v.UID != had.UID:
		return b.afterVolume(had, nil, b.dropVolume(had))
	}
	news := b.putVolume(v, false)
	b.shelve(name)
	return b.afterVolume(had, v, news)
}

// dispelClaim reads a claim in doubt, and the volume it was being joined to, from the API server.
// The binder decides nothing from objects that may be wrong.
func (r *reconciler) dispelClaim(ctx context.Context, key claimKey) error {
	name, doubted := r.books.doubtOf(key)
	if !doubted {
		return nil
	}
	if name != "" {
		if err := r.dispelVolume(ctx, name); err != nil {
			return err
		}
	}
	claim, err := r.api.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading claim %s again: %w", key, err)
	}
	if err != nil {
		claim = nil
	}
	r.wake(r.books.sureOfClaim(key, claim))
	return nil
}

// dispelVolume reads a volume in doubt from the API server.
func (r *reconciler) dispelVolume(ctx context.Context, name string) error {
	if !r.books.isDoubtful(name) {
		return nil
	}
	v, err := r.api.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading volume %q again: %w", name, err)
	}
	if err != nil {
		v = nil
	}
	r.wake(r.books.sureOfVolume(name, v))
	return nil
}

// makeSure asks the API server where a decision about a claim must not rest on a cache. It returns
// false if the answer differs from the cache: then nothing can be decided now. The claim is
// reconciled again when the cache has caught up.
func (r *reconciler) makeSure(ctx context.Context, key claimKey, v *ClaimView) (bool, error) {
	if v.mustAsk() {
		return r.sureOfView(ctx, key, v)
	}
	if v.Chosen == nil || v.Chosen.Spec.ClaimRef != nil || v.Class != nil || r.books.isAbsent(volume.ClassOf(v.Claim)) {
		return true, nil
	}
	return r.sureOfClass(ctx, key, volume.ClassOf(v.Claim))
}

func (r *reconciler) sureOfView(ctx context.Context, key claimKey, v *ClaimView) (bool, error) {
	name, known := v.Claim.Spec.VolumeName, v.volume()
	if known != nil {
		name = known.Name
	}
	live, err := r.api.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		live = nil
	case err != nil:
		return false, fmt.Errorf("reading volume %q of claim %s: %w", name, key, err)
	}
	if live == nil && known == nil || live != nil && known != nil && sameVersion(live, known) {
		v.Asked = true
		return true, nil
	}
	// A volume that is not in the cache yet enqueues the claim when the watch delivers it.
	r.wake(r.books.sureOfVolume(name, live))
	return false, nil
}

// sureOfClass makes sure that a class does not exist before the binder assigns a free volume,
// because the class may want to wait for a pod. It asks once for each name. The watch reports a
// class that is created or deleted later.
func (r *reconciler) sureOfClass(ctx context.Context, key claimKey, name string) (bool, error) {
	_, err := r.classes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.books.isNoClass(name)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading StorageClass %q of claim %s: %w", name, key, err)
	}
	return false, fmt.Errorf("StorageClass %q of claim %s was created just now; the claim is reconciled when the watch delivers the class", name, key)
}

// isAbsent says whether a class surely does not exist. The empty name counts as absent.
func (b *books) isAbsent(class string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, absent := b.absent[class]
	return absent || class == ""
}

func (b *books) isNoClass(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.absent[name] = struct{}{}
}
