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

// markUncertain marks a claim and a volume as uncertain: the outcome of a write is unknown, so both must be
// read again. Either may be missing.
func (c *cache) markUncertain(key claimKey, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key != (claimKey{}) && c.claims[key] != nil {
		c.uncertainClaims[key] = name
	}
	if c.volumes[name] != nil {
		c.uncertainVolumes[name] = true
		c.indexVolume(name)
	}
}

func (c *cache) uncertainClaim(key claimKey) (name string, uncertain bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, uncertain = c.uncertainClaims[key]
	return name, uncertain
}

func (c *cache) isUncertain(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uncertainVolumes[name]
}

// confirmClaim stores the API server's answer about an uncertain claim, nil for gone.
func (c *cache) confirmClaim(key claimKey, claim *corev1.PersistentVolumeClaim) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.uncertainClaims, key)
	had := c.claims[key]
	switch {
	case had == nil:
		return requests{}
	case claim == nil || claim.UID != had.UID:
		return c.afterClaim(had, nil, c.dropClaim(had))
	}
	return c.afterClaim(had, claim, c.putClaim(claim, false))
}

// confirmVolume stores the API server's answer about an uncertain volume, nil for gone.
func (c *cache) confirmVolume(name string, v *corev1.PersistentVolume) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.uncertainVolumes, name)
	had := c.volumes[name]
	switch {
	case had == nil:
		return requests{}
	case v == nil || v.UID != had.UID:
		return c.afterVolume(had, nil, c.dropVolume(had))
	}
	news := c.putVolume(v, false)
	c.indexVolume(name)
	return c.afterVolume(had, v, news)
}

// rereadClaim reads an uncertain claim, and the volume it was being bound to, from the API server.
// The binder decides nothing from objects that may be wrong.
func (r *reconciler) rereadClaim(ctx context.Context, key claimKey) error {
	name, uncertain := r.cache.uncertainClaim(key)
	if !uncertain {
		return nil
	}
	if name != "" {
		if err := r.rereadVolume(ctx, name); err != nil {
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
	r.enqueue(r.cache.confirmClaim(key, claim))
	return nil
}

// rereadVolume reads an uncertain volume from the API server.
func (r *reconciler) rereadVolume(ctx context.Context, name string) error {
	if !r.cache.isUncertain(name) {
		return nil
	}
	v, err := r.api.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading volume %q again: %w", name, err)
	}
	if err != nil {
		v = nil
	}
	r.enqueue(r.cache.confirmVolume(name, v))
	return nil
}

// confirmView asks the API server where a decision about a claim must not rest on a cache. It returns
// false if the answer differs from the cache: then nothing can be decided now. The claim is
// reconciled again when the cache has caught up.
func (r *reconciler) confirmView(ctx context.Context, key claimKey, v *ClaimView) (bool, error) {
	if v.needsLiveRead() {
		return r.confirmVolumeOf(ctx, key, v)
	}
	if v.Chosen == nil || v.Chosen.Spec.ClaimRef != nil || v.Class != nil || r.cache.classIsAbsent(volume.ClassOf(v.Claim)) {
		return true, nil
	}
	return r.confirmNoClass(ctx, key, volume.ClassOf(v.Claim))
}

func (r *reconciler) confirmVolumeOf(ctx context.Context, key claimKey, v *ClaimView) (bool, error) {
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
	r.enqueue(r.cache.confirmVolume(name, live))
	return false, nil
}

// confirmNoClass makes sure that a class does not exist before the binder assigns a free volume,
// because the class may want to wait for a pod. It asks once for each name. The watch reports a
// class that is created or deleted later.
func (r *reconciler) confirmNoClass(ctx context.Context, key claimKey, name string) (bool, error) {
	_, err := r.classes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.cache.putAbsentClass(name)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading StorageClass %q of claim %s: %w", name, key, err)
	}
	return false, fmt.Errorf("StorageClass %q of claim %s was created just now; the claim is reconciled when the watch delivers the class", name, key)
}

// classIsAbsent says whether a class surely does not exist. The empty name counts as absent.
func (c *cache) classIsAbsent(class string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, absent := c.absentClasses[class]
	return absent || class == ""
}

func (c *cache) putAbsentClass(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.absentClasses[name] = struct{}{}
}
