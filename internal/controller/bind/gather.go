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

// mustAsk says whether the binder must ask the API server about a volume, because no write of the
// plan would detect a stale one. A claim must not become Lost because one watch is behind another.
// A claim must not get a volume whose writes were all made earlier, as no new write checks its
// version.
func (v *ClaimView) mustAsk() bool {
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

// gatherClaim returns the view of a claim, nil if there is nothing to decide now. The caller holds
// the view's volume and must release it.
func (r *reconciler) gatherClaim(ctx context.Context, key claimKey) (*ClaimView, error) {
	if err := r.dispelClaim(ctx, key); err != nil {
		return nil, err
	}
	v, doubtful := r.books.lookAtClaim(key)
	for doubtful != "" {
		if err := r.dispelVolume(ctx, doubtful); err != nil {
			return nil, err
		}
		v, doubtful = r.books.lookAtClaim(key)
	}
	if v != nil {
		sure, err := r.makeSure(ctx, key, v)
		if !sure {
			if held := v.volume(); held != nil {
				r.letGo(held.Name, err)
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

// gatherVolume returns the view of a volume, which the caller then holds. It returns nil if there
// is nothing to decide. It also does if another worker holds the volume, which then enqueues it on
// release.
func (r *reconciler) gatherVolume(ctx context.Context, name string) (*VolumeView, error) {
	if err := r.dispelVolume(ctx, name); err != nil {
		return nil, err
	}
	v := r.books.lookAtVolume(name)
	if v == nil || !planVolume(v).Ask {
		return v, nil
	}
	ref := v.Volume.Spec.ClaimRef
	claim, err := r.api.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		claim = nil
	case err != nil:
		err = fmt.Errorf("reading claim %s/%s of volume %q: %w", ref.Namespace, ref.Name, name, err)
		r.letGo(name, err)
		return nil, err
	}
	v.Claim, v.Asked = claim, true
	return v, nil
}

// lookAtClaim returns the view of a claim and holds its volume. The view is nil if there is nothing
// to do or another worker holds the volume. doubtful names a volume that must be read again first.
func (b *books) lookAtClaim(key claimKey) (v *ClaimView, doubtful string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	claim := b.claims[key]
	if claim == nil {
		return nil, ""
	}
	if _, rested := b.resting[key]; rested {
		delete(b.resting, key)
		b.file(key, claim)
	}
	v = b.viewClaim(claim)
	if volume.StateOfClaim(claim) == volume.ClaimUnbound {
		v.Chosen, v.Problem = b.choose(claim)
		v.Class, v.Default = b.classes[volume.ClassOf(claim)], b.defaultClass()
	}
	vol := v.volume()
	if vol == nil {
		return v, ""
	}
	if b.doubtful[vol.Name] {
		return nil, vol.Name
	}
	if v.Chosen == nil {
		if plan := planClaim(v); plan.idle() {
			return nil, ""
		}
	}
	if !b.take(vol.Name, key) {
		return nil, ""
	}
	return v, ""
}

func (b *books) viewClaim(claim *corev1.PersistentVolumeClaim) *ClaimView {
	return &ClaimView{Claim: claim, Named: b.volumes[claim.Spec.VolumeName], NoProvisioning: b.noProvisioning}
}

// choose finds the volume for a claim that names none: the best that points at it, else the best
// free one, unless the class waits for a pod. A claim that is being deleted or has a data source
// gets only a volume that already points at it.
func (b *books) choose(claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if v := b.reservedFor(claim); v != nil {
		return v, nil
	}
	if claim.DeletionTimestamp != nil || volume.HasSource(claim) {
		return nil, nil
	}
	waits, err := volume.WaitsForConsumer(b.classes[volume.ClassOf(claim)])
	if err != nil || waits {
		return nil, err
	}
	selector, err := volume.Selector(claim)
	if err != nil {
		return nil, err
	}
	return smallest(b.free, claim, selector), nil
}

// reservedFor returns the best volume that points at a claim: one that names its UID first, then
// the smallest.
func (b *books) reservedFor(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	var best *corev1.PersistentVolume
	for name := range b.pointing[keyOf(claim)] {
		v := b.volumes[name]
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

// lookAtVolume returns the view of a volume and holds it. It returns nil if the volume does not
// exist or another worker holds it.
func (b *books) lookAtVolume(name string) *VolumeView {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.volumes[name]
	if v == nil || !b.take(name, claimKey{}) {
		return nil
	}
	return b.viewVolume(v)
}

// expectsClaim says whether a volume created after madeAfter waits for the claim that it is
// reserved for.
func (b *books) expectsClaim(name string, madeAfter time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.volumes[name]
	return v != nil && !b.doubtful[name] && v.CreationTimestamp.After(madeAfter) && expectsClaim(b.viewVolume(v))
}

func (b *books) viewVolume(v *corev1.PersistentVolume) *VolumeView {
	view := &VolumeView{Volume: v}
	if key, ok := refKey(v); ok {
		view.Claim = b.claims[key]
	}
	for key := range b.taking[v.Name] {
		view.Taker = b.claims[key]
		break
	}
	return view
}
