package pavvolume

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

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

// refused is the refusal of a volume, nil where Kubernetes' own binder acts.
func refused(v *View) *Refusal {
	if !v.OwnBinder {
		return nil
	}
	return refusalOf(v.Volume, v.Namespace)
}

// gatherStranger reads the retention of a volume without a record that is to be Failed.
func (r *reconciler) gatherStranger(ctx context.Context, v *View) (err error) {
	if refused(v) != nil {
		v.Retention, err = kube.RetentionOf(ctx, r.client, v.Volume, nil)
	}
	return err
}

// planStranger handles a volume without a record. It releases a PersistentVolume of Tarn whose
// record was removed by force: no record says any more how to delete its storage, so keeping the
// object gains nothing. In place of Kubernetes' binder, it sets a volume to Failed if no provisioner
// deletes it.
func planStranger(v *View, now time.Time) Plan {
	vol := v.Volume
	if vol.DeletionTimestamp != nil && vol.Annotations[tarnv1.AnnotationRecord] != "" && vol.Status.Phase != corev1.VolumeBound &&
		controllerutil.ContainsFinalizer(vol, volume.FinalizerExternal) {
		record := &tarnv1.PavVolume{}
		record.Name = vol.Name
		return Plan{Actions: []action.Action{
			action.ConfirmAbsent{Object: record},
			action.RemoveFinalizer{Object: vol, Name: volume.FinalizerExternal},
			action.Emit{About: vol, Type: corev1.EventTypeWarning, Reason: eventDeleteFailed, Doing: "Forget", Note: fmt.Sprintf(
				"the PavVolume of this volume was removed by force, so its storage is not deleted; delete %q of %q by hand", vol.Spec.CSI.VolumeHandle, vol.Spec.CSI.Driver)},
		}}
	}
	refusal := refused(v)
	if refusal == nil {
		return Plan{}
	}
	if why, until := v.kept(now); why != "" {
		return Plan{Next: kube.Sooner(until, now.Add(retentionLook))}
	}
	failed := vol.DeepCopy()
	failed.Status.Phase, failed.Status.Message = corev1.VolumeFailed, refusal.Message
	return Plan{Actions: []action.Action{
		action.PatchStatus{From: vol, To: failed},
		action.Emit{About: vol, Type: corev1.EventTypeWarning, Reason: refusal.Reason, Doing: "Delete", Note: refusal.Message},
	}}
}
