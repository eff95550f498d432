package testkit

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The methods below do in a round of Play what other controllers do in a cluster. They ignore a
// rejected request, because the next round repeats it.

// Release removes from an object that is being deleted the finalizers that begin with a prefix; ""
// removes all.
func (w *World) Release(o client.Object, prefix string) {
	if o.GetDeletionTimestamp() == nil {
		return
	}
	base := o.DeepCopyObject().(client.Object)
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return strings.HasPrefix(f, prefix) }))
	if len(o.GetFinalizers()) != len(base.GetFinalizers()) {
		_ = w.Client.Patch(w.Ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	}
}

// Stop ends a pod that is being deleted, as the kubelet does. It reports whether it is.
func (w *World) Stop(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	_ = w.Client.Delete(w.Ctx, pod, client.GracePeriodSeconds(0))
	return true
}

// Bind names the volume in the claim and makes the claim Bound, one write a round.
func (w *World) Bind(claim *corev1.PersistentVolumeClaim, volume string) {
	switch {
	case claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimBound:
	case claim.Spec.VolumeName == "":
		claim.Spec.VolumeName = volume
		_ = w.Client.Update(w.Ctx, claim)
	default:
		claim.Status.Phase = corev1.ClaimBound
		_ = w.Client.Status().Update(w.Ctx, claim)
	}
}

// SetVolumePhase gives a volume its phase by the claims there are, and reports whether it had
// another. Like both binders it leaves Failed as it is where the claim is gone.
func (w *World) SetVolumePhase(volume *corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) (changed bool) {
	want := PhaseOf(volume, claims)
	if volume.Status.Phase == want || volume.Status.Phase == corev1.VolumeFailed && want == corev1.VolumeReleased {
		return false
	}
	volume.Status.Phase, volume.Status.Message = want, ""
	_ = w.Client.Status().Update(w.Ctx, volume)
	return true
}

// PhaseOf is the phase that the binder gives a volume: Available without a claimRef, Bound while
// the claim with its UID exists, Released afterwards.
func PhaseOf(volume *corev1.PersistentVolume, claims []corev1.PersistentVolumeClaim) corev1.PersistentVolumePhase {
	ref := volume.Spec.ClaimRef
	switch {
	case ref == nil:
		return corev1.VolumeAvailable
	case slices.ContainsFunc(claims, func(c corev1.PersistentVolumeClaim) bool { return c.UID == ref.UID }):
		return corev1.VolumeBound
	}
	return corev1.VolumeReleased
}

// Create creates objects, as a user would.
func (w *World) Create(objects ...client.Object) {
	w.T.Helper()
	for _, o := range objects {
		w.Must(w.Client.Create(w.Ctx, o))
	}
}

// CreateWithStatus creates an object and gives it the status it was built with.
func (w *World) CreateWithStatus(o client.Object) {
	w.T.Helper()
	built := o.DeepCopyObject().(client.Object)
	w.Create(o)
	built.SetUID(o.GetUID())
	built.SetResourceVersion(o.GetResourceVersion())
	w.Must(w.Client.Status().Update(w.Ctx, built))
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o))
}

// Namespace creates a namespace with a name that no other run has.
func (w *World) Namespace(prefix string) string {
	w.T.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	w.Create(namespace)
	return namespace.Name
}

// Gone is a check for Eventually: it gives "" once the object is gone.
func (w *World) Gone(o client.Object) string {
	err := w.Client.Get(w.Ctx, client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return ""
	}
	w.Must(err)
	return o.GetName() + " is there, with finalizers " + strings.Join(o.GetFinalizers(), " ")
}
