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

// doubt says that nobody knows whether a write was carried out: what it was about is
// to be read anew. Either may be missing.
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

// sureOfClaim enters what the API server says of a claim in doubt, nil for gone.
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

// sureOfVolume enters what the API server says of a volume in doubt, nil for gone.
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

// dispelClaim reads a claim anew, and the volume it was being joined to, if a write
// of either ended otherwise than was told: nothing is decided on what may be wrong.
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

// dispelVolume does the same for a volume.
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

// makeSure asks the API server for what a look at a claim has to know better than a
// watch. If that is not what the books say, nothing can be decided now, and the claim
// is looked at again when they do.
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
	// One that is not in the books yet wakes the claim when its watch tells of it.
	r.wake(r.books.sureOfVolume(name, live))
	return false, nil
}

// sureOfClass makes sure that there is no class of a name before a free volume is
// given away that the class may want kept until there is a pod. It asks once for each
// name; of a class that comes or goes later the watch tells.
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

// isAbsent says whether there is surely no class of a name. A claim may have none.
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
