package retention

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// errInUse says that something keeps a volume whose retention is over: no event of the
// volume tells when that changes, so the queue asks again.
var errInUse = errors.New("a volume in the trash is in use")

// apply writes the volume as the version it was decided on, so that the binder, or who
// undeletes it, wins; then tells.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) error {
	if p.Grave {
		if err := r.confirmUnused(ctx, v.Volume); err != nil {
			return err
		}
	}
	if p.Write != nil {
		err := r.client.Patch(ctx, p.Write.DeepCopy(), client.MergeFromWithOptions(v.Volume, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("writing PersistentVolume %s: %w", v.Volume.Name, err)
		}
	}
	if e := p.Event; e.Reason != "" {
		r.events.Eventf(v.Volume, nil, e.Type, e.Reason, "Trash", "%s", kube.Note(e.Note))
	}
	return nil
}

// confirmUnused looks live at what decides that data is destroyed: the volume is as
// the cache had it, its claim is gone, and no pod and no node has it.
func (r *reconciler) confirmUnused(ctx context.Context, vol *corev1.PersistentVolume) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(vol), &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if live == nil || live.UID != vol.UID || live.ResourceVersion != vol.ResourceVersion {
		return kube.ErrStale
	}
	keeper, err := r.claims.Keeping(ctx, live.Name, live, nil)
	if err != nil {
		return err
	}
	if keeper != nil {
		return r.keep(live, fmt.Sprintf("claim %s/%s uses it", keeper.Namespace, keeper.Name))
	}
	pod, err := r.claims.Started(ctx, live)
	if err != nil {
		return err
	}
	if pod != nil {
		return r.keep(live, fmt.Sprintf("pod %s/%s uses it, and its claim was removed by force or lost the volume", pod.Namespace, pod.Name))
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := r.reader.List(ctx, attachments); err != nil {
		return fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	for i := range attachments.Items {
		if name := attachments.Items[i].Spec.Source.PersistentVolumeName; name != nil && *name == live.Name {
			return r.keep(live, "it is attached to node "+attachments.Items[i].Spec.NodeName)
		}
	}
	return nil
}

// keep tells why a volume stays though its retention is over.
func (r *reconciler) keep(vol *corev1.PersistentVolume, why string) error {
	r.events.Eventf(vol, nil, corev1.EventTypeWarning, eventInUse, "Trash", "%s", kube.Note("the retention is over, but the volume is kept: "+why))
	return fmt.Errorf("%w: %s", errInUse, why)
}
