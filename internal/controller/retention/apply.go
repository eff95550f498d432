package retention

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// errInUse says that something still uses a volume whose retention is over. No event of the
// volume tells when that changes, so the queue retries.
var errInUse = errors.New("a volume in the trash is in use")

// apply writes the volume against the version that the plan was made from, then emits the
// event. A write by the binder or by tarn undelete in between makes it fail.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) error {
	if p.Grave {
		if err := r.confirmUnused(ctx, v.Volume); err != nil {
			return err
		}
	}
	var actions []action.Action
	if p.Write != nil {
		actions = append(actions, action.Patch{From: v.Volume, To: p.Write})
	}
	if e := p.Event; e.Reason != "" {
		actions = append(actions, action.Emit{About: v.Volume, Type: e.Type, Reason: e.Reason, Doing: "Trash", Note: e.Note})
	}
	return r.runner.Do(ctx, actions...)
}

// confirmUnused returns nil if the volume's data may be destroyed. It reads from the API
// server: the volume is as the cache had it, its claim is gone, and no pod uses it. It must not
// be attached to a node either.
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
		return r.keep(ctx, live, fmt.Sprintf("claim %s/%s uses it", keeper.Namespace, keeper.Name))
	}
	pod, err := r.claims.Started(ctx, live)
	if err != nil {
		return err
	}
	if pod != nil {
		return r.keep(ctx, live, fmt.Sprintf("pod %s/%s uses it, and its claim was removed by force or lost the volume", pod.Namespace, pod.Name))
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := r.reader.List(ctx, attachments); err != nil {
		return fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	for i := range attachments.Items {
		if name := attachments.Items[i].Spec.Source.PersistentVolumeName; name != nil && *name == live.Name {
			return r.keep(ctx, live, "it is attached to node "+attachments.Items[i].Spec.NodeName)
		}
	}
	return nil
}

// keep emits a warning that says why a volume stays after its retention, and returns errInUse.
func (r *reconciler) keep(ctx context.Context, vol *corev1.PersistentVolume, why string) error {
	told := r.runner.Do(ctx, action.Emit{About: vol, Type: corev1.EventTypeWarning, Reason: eventInUse, Doing: "Trash", Note: "the retention is over, but the volume is kept: " + why})
	return errors.Join(told, fmt.Errorf("%w: %s", errInUse, why))
}
