package reclaim

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes/status,verbs=patch

// Refusal is why no provisioner deletes a released volume that has no record.
type Refusal struct{ Reason, Message string }

// refusalOf returns why a released volume cannot be handled by its policy, as Kubernetes' binder
// would; nil if Tarn need not act. The provisioner of a volume of policy Delete deletes it, and the
// driver deletes a CSI volume. No program deletes a volume that was created by hand.
func refusalOf(vol *corev1.PersistentVolume, namespace string) *Refusal {
	by, made := vol.Annotations[volume.AnnProvisionedBy], vol.Annotations[volume.AnnProvisionedBy] != ""
	inTree := strings.HasPrefix(by, "kubernetes.io/") && volume.MigratedTo(by) == ""
	policy := vol.Spec.PersistentVolumeReclaimPolicy
	switch {
	case !released(vol) || vol.DeletionTimestamp != nil, volume.Passing(vol, namespace), vol.Annotations[volume.AnnMigratedTo] != "":
		return nil
	case policy == corev1.PersistentVolumeReclaimRetain, policy == corev1.PersistentVolumeReclaimRecycle:
		return nil
	case policy != corev1.PersistentVolumeReclaimDelete:
		return &Refusal{eventUnknownPolicy, fmt.Sprintf("reclaim policy %q is unknown, so the volume is kept; set it to Delete, Retain or Recycle", policy)}
	case inTree:
		return &Refusal{eventDeleteFailed, fmt.Sprintf("no deleter: provisioner %s, which created the volume, is not served any more; delete its storage by hand, then the PersistentVolume", by)}
	case made, vol.Spec.CSI != nil:
		return nil
	}
	return &Refusal{eventDeleteFailed, "no deleter: no provisioner created the volume, so none deletes it; delete its storage by hand, then the PersistentVolume, or set reclaim policy Retain to keep it or Recycle to use it again"}
}

// strangers handles a volume without a record. It releases a PersistentVolume that was Tarn's. In
// place of Kubernetes' binder, it sets a volume to Failed if no provisioner deletes it.
func (r *reconciler) strangers(ctx context.Context, v *View) (reconcile.Result, error) {
	now := r.clock.Now()
	if err := r.forget(ctx, v); err != nil || v.Volume == nil || !r.ownBinder {
		return kube.Outcome(err, time.Time{}, now)
	}
	refusal := refusalOf(v.Volume, v.Namespace)
	if refusal == nil {
		return reconcile.Result{}, nil
	}
	said, err := kube.RetentionOf(ctx, r.client, v.Volume, nil)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	if why, until := volume.KeptBy(v.Volume, said, v.Namespace, now); why != "" {
		return kube.Outcome(nil, kube.Sooner(until, now.Add(retentionLook)), now)
	}
	return kube.Outcome(r.refuse(ctx, v.Volume, refusal), time.Time{}, now)
}

// refuse sets phase Failed, if the volume is unchanged since the decision, and posts the reason.
func (r *reconciler) refuse(ctx context.Context, vol *corev1.PersistentVolume, refusal *Refusal) error {
	to := vol.DeepCopy()
	to.Status.Phase, to.Status.Message = corev1.VolumeFailed, refusal.Message
	err := r.client.Status().Patch(ctx, to, client.MergeFromWithOptions(vol, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the phase of PersistentVolume %s: %w", vol.Name, err)
	}
	r.events.Eventf(vol, nil, corev1.EventTypeWarning, refusal.Reason, "Delete", "%s", kube.Note(refusal.Message))
	return nil
}
