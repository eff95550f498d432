package bind

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// ClaimView is all that the binder knows about one claim. Objects that do not exist are nil.
type ClaimView struct {
	Claim *corev1.PersistentVolumeClaim
	// Named is the volume the claim names.
	Named *corev1.PersistentVolume
	// Chosen is the volume for a claim that names none: one that points at it, else the best free
	// one.
	Chosen *corev1.PersistentVolume
	// Class is the claim's class; Default is the class for claims that set none.
	Class, Default *storagev1.StorageClass
	// Pods are the names of the pods that use the claim and have no node yet.
	Pods []string
	// NoProvisioning says that no provisioner may be called.
	NoProvisioning bool
	// Problem is why the binder could not search for a volume.
	Problem error
	// Asked says that the volume was compared with the API server's own answer.
	Asked bool
}

// VolumeView is all that the binder knows about one volume.
type VolumeView struct {
	Volume *corev1.PersistentVolume
	// Claim is the claim with the name that the volume points at, nil if it does not exist.
	Claim *corev1.PersistentVolumeClaim
	// Taker is a claim that names the volume and is about to take it, for a volume without a
	// claimRef; nil if there is none.
	Taker *corev1.PersistentVolumeClaim
	// Asked says that Claim is the API server's own answer, not the cache's.
	Asked bool
}

// volume is the volume that the claim is or may be joined to, nil for none.
func (v *ClaimView) volume() *corev1.PersistentVolume {
	if v.Named != nil {
		return v.Named
	}
	return v.Chosen
}

// needsLiveRead says whether the binder must ask the API server about a volume, because no write of the
// plan would detect a stale one. A claim must not become Lost because one watch is behind another.
// A claim must not get a volume whose writes were all made earlier, as no new write checks its
// version.
func (v *ClaimView) needsLiveRead() bool {
	switch volume.StateOfClaim(v.Claim) {
	case volume.ClaimCompleted:
		link := volume.LinkOf(v.Named, v.Claim)
		return !v.Asked && v.Claim.Status.Phase != corev1.ClaimLost && v.Claim.Spec.VolumeName != "" && link != volume.LinkNone && link != volume.LinkHeld
	case volume.ClaimUnbound:
		return !v.Asked && v.Chosen != nil && v.Chosen.Status.Phase == corev1.VolumeBound && volume.HeldBy(v.Chosen, v.Claim)
	}
	return false
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// gatherClaim returns the view of a claim, nil if there is nothing to decide now. The caller has locked
// the view's volume and must release it.
func (r *reconciler) gatherClaim(ctx context.Context, key claimKey) (*ClaimView, error) {
	if err := r.rereadClaim(ctx, key); err != nil {
		return nil, err
	}
	v, uncertain := r.cache.readClaim(key)
	for uncertain != "" {
		if err := r.rereadVolume(ctx, uncertain); err != nil {
			return nil, err
		}
		v, uncertain = r.cache.readClaim(key)
	}
	if v != nil {
		sure, err := r.confirmView(ctx, key, v)
		if !sure {
			if held := v.volume(); held != nil {
				r.unlockVolume(held.Name, err)
			}
			return nil, err
		}
	}
	if v == nil || r.pods == nil || v.Chosen != nil || volume.StateOfClaim(v.Claim) != volume.ClaimUnbound {
		return v, nil
	}
	if waits, err := volume.WaitsForConsumer(v.Class); err != nil || !waits {
		return v, nil //nolint:nilerr // the plan says what is wrong with the class
	}
	pods := &corev1.PodList{}
	err := r.pods.List(ctx, pods, client.InNamespace(key.Namespace), client.MatchingFields{kube.PodsByClaim: key.Name})
	if err != nil {
		return nil, fmt.Errorf("listing the pods that use claim %s: %w", key, err)
	}
	for i := range pods.Items {
		if unplaced(&pods.Items[i]) {
			v.Pods = append(v.Pods, pods.Items[i].Name)
		}
	}
	slices.Sort(v.Pods)
	return v, nil
}

// unplaced says whether a pod still waits for a node.
func unplaced(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && !volume.Ended(pod)
}

// gatherVolume returns the view of a volume, which the caller has then locked. It returns nil if there
// is nothing to decide. It also does if another worker has locked the volume, which then enqueues it on
// release.
func (r *reconciler) gatherVolume(ctx context.Context, name string) (*VolumeView, error) {
	if err := r.rereadVolume(ctx, name); err != nil {
		return nil, err
	}
	v := r.cache.readVolume(name)
	if v == nil || !planVolume(v).NeedsLiveRead {
		return v, nil
	}
	ref := v.Volume.Spec.ClaimRef
	claim, err := r.api.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		claim = nil
	case err != nil:
		err = fmt.Errorf("reading claim %s/%s of volume %q: %w", ref.Namespace, ref.Name, name, err)
		r.unlockVolume(name, err)
		return nil, err
	}
	v.Claim, v.Asked = claim, true
	return v, nil
}

// readClaim returns the view of a claim and locks its volume. The view is nil if there is nothing
// to do or another worker has locked the volume. uncertain names a volume that must be read again first.
func (c *cache) readClaim(key claimKey) (v *ClaimView, uncertain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.claims[key]
	if claim == nil {
		return nil, ""
	}
	if _, rested := c.backingOff[key]; rested {
		delete(c.backingOff, key)
		c.indexClaim(key, claim)
	}
	v = c.claimView(claim)
	if volume.StateOfClaim(claim) == volume.ClaimUnbound {
		v.Chosen, v.Problem = c.choose(claim)
		v.Class, v.Default = c.classes[volume.ClassOf(claim)], c.defaultClass()
	}
	vol := v.volume()
	if vol == nil {
		return v, ""
	}
	if c.uncertainVolumes[vol.Name] {
		return nil, vol.Name
	}
	if v.Chosen == nil {
		if plan := planClaim(v); plan.idle() {
			return nil, ""
		}
	}
	if !c.lockVolume(vol.Name, key) {
		return nil, ""
	}
	return v, ""
}

func (c *cache) claimView(claim *corev1.PersistentVolumeClaim) *ClaimView {
	return &ClaimView{Claim: claim, Named: c.volumes[claim.Spec.VolumeName], NoProvisioning: c.noProvisioning}
}

// choose finds the volume for a claim that names none: the best that points at it, else the best
// free one, unless the class waits for a pod. A claim that is being deleted or has a data source
// gets only a volume that already points at it.
func (c *cache) choose(claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if v := c.reservedFor(claim); v != nil {
		return v, nil
	}
	if claim.DeletionTimestamp != nil || volume.HasSource(claim) {
		return nil, nil
	}
	waits, err := volume.WaitsForConsumer(c.classes[volume.ClassOf(claim)])
	if err != nil || waits {
		return nil, err
	}
	selector, err := volume.Selector(claim)
	if err != nil {
		return nil, err
	}
	return smallest(c.free, claim, selector), nil
}

// reservedFor returns the best volume that points at a claim: one that names its UID first, then
// the smallest.
func (c *cache) reservedFor(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	var best *corev1.PersistentVolume
	for name := range c.byClaimRef[keyOf(claim)] {
		v := c.volumes[name]
		if volume.Reserved(v, claim) != volume.Fits || claim.DeletionTimestamp != nil && !volume.HeldBy(v, claim) {
			continue
		}
		if best == nil || better(v, best, claim) {
			best = v
		}
	}
	return best
}

func better(a, b *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	if held := volume.HeldBy(a, claim); held != volume.HeldBy(b, claim) {
		return held
	}
	return cmp.Or(volume.Capacity(a).Cmp(*volume.Capacity(b)), cmp.Compare(a.Name, b.Name)) < 0
}

// readVolume returns the view of a volume and locks it. It returns nil if the volume does not
// exist or another worker has locked it.
func (c *cache) readVolume(name string) *VolumeView {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volumes[name]
	if v == nil || !c.lockVolume(name, claimKey{}) {
		return nil
	}
	return c.volumeView(v)
}

// expectsClaim says whether a volume created after madeAfter waits for the claim that it is
// reserved for.
func (c *cache) expectsClaim(name string, madeAfter time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volumes[name]
	return v != nil && !c.uncertainVolumes[name] && v.CreationTimestamp.After(madeAfter) && expectsClaim(c.volumeView(v))
}

func (c *cache) volumeView(v *corev1.PersistentVolume) *VolumeView {
	view := &VolumeView{Volume: v}
	if key, ok := refKey(v); ok {
		view.Claim = c.claims[key]
	}
	for key := range c.preboundTo[v.Name] {
		view.Taker = c.claims[key]
		break
	}
	return view
}
