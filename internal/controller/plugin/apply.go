package plugin

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/volume"
)

// Events of volumes from tarn.dev/host-path, on a claim or a PersistentVolume. The reasons are
// those of Kubernetes' own controllers.
const (
	// eventStarted: a volume is being created for the claim.
	eventStarted = "Provisioning"
	// eventSucceeded: the PersistentVolume exists.
	eventSucceeded = "ProvisioningSucceeded"
	// eventFailed: no volume could be created. Correct the cause in the message; the next attempt
	// follows by itself.
	eventFailed = "ProvisioningFailed"
	// eventCleanupFailed: a volume that the claim does not need could not be removed. The next
	// attempt follows by itself.
	eventCleanupFailed = "ProvisioningCleanupFailed"
	// eventInUse: the volume is not deleted yet, because it is in use. Delete what the message
	// names.
	eventInUse = "VolumeDelete"
	// eventRetained: the volume is kept, for the cause in the message.
	eventRetained = "VolumeRetained"
	// eventDeleteFailed: the storage could not be deleted. Correct the cause in the message; the
	// next attempt follows by itself.
	eventDeleteFailed = "VolumeFailedDelete"
)

var (
	// errUnfinished says that a plugin has used up its time and has more to do.
	errUnfinished = errors.New("the plugin has not finished")
	// errElsewhere says that only a controller on another node can do it.
	errElsewhere = errors.New("the controller runs on another node")
	// errClaimThere says that a claim still keeps a volume that is to be deleted. No event of
	// the volume tells when that changes, so the queue retries.
	errClaimThere = errors.New("the claim of a volume that should be deleted still exists")
	// errPodThere says the same of a pod.
	errPodThere = errors.New("a pod still uses a volume that should be deleted")
)

// apply carries out a plan. It returns true if the View has changed so that the next step can
// follow at once.
func (r *reconciler) apply(ctx context.Context, v *View, p Plan) (bool, error) {
	switch p.Act {
	case ActRefuse:
		return false, r.refuse(ctx, v, p)
	case ActPromise:
		return true, r.promise(ctx, v)
	case ActMake:
		return true, r.make(ctx, v)
	case ActUndo:
		return false, r.undo(ctx, v)
	case ActFulfil:
		return false, r.takeBack(ctx, v.Claim, false)
	case ActHold:
		return false, r.hold(ctx, v.Volume)
	case ActLetGo:
		return false, kube.RemoveFinalizer(ctx, r.client, v.Volume.DeepCopy(), volume.FinalizerExternal)
	case ActKeep:
		r.events.Eventf(v.Volume, nil, corev1.EventTypeWarning, eventDeleteFailed, p.Cause, "%s", kube.Note(p.Warning))
		return false, nil
	case ActRetain:
		r.events.Eventf(v.Volume, nil, corev1.EventTypeNormal, eventRetained, "Delete", "%s", kube.Note(p.Warning))
		return false, nil
	case ActDelete:
		return false, r.delete(ctx, v)
	}
	return false, nil
}

// warn emits a Warning about an object. Kubernetes merges Events that differ only in their
// note, so each variable note needs an action of its own.
func (r *reconciler) warn(about client.Object, reason, action string, err error) {
	note := kube.Note(err.Error())
	r.events.Eventf(about, nil, corev1.EventTypeWarning, reason, fmt.Sprintf("%s%08x", action, crc32.ChecksumIEEE([]byte(note))), "%s", note)
}

// refuse tells the claim why it gets no volume, and lets the scheduler choose another node.
func (r *reconciler) refuse(ctx context.Context, v *View, p Plan) error {
	r.events.Eventf(v.Claim, nil, corev1.EventTypeWarning, eventFailed, p.Cause, "%s", kube.Note(p.Warning))
	switch {
	case p.Retry:
		return errors.New(p.Warning)
	case p.GiveBack:
		return r.takeBack(ctx, v.Claim, true)
	}
	return nil
}

// liveClaim reads the claim of the View from the API server. It fails if the claim has changed
// since the decision: it may be gone, have a volume, or have lost its promise or its node.
func (r *reconciler) liveClaim(ctx context.Context, v *View) (*corev1.PersistentVolumeClaim, error) {
	live, err := kube.Get(ctx, r.reader, client.ObjectKeyFromObject(v.Claim), &corev1.PersistentVolumeClaim{})
	if err != nil {
		return nil, err
	}
	if live == nil || live.UID != v.Claim.UID || live.ResourceVersion != v.Claim.ResourceVersion {
		return nil, kube.ErrStale
	}
	return live, nil
}

// promise records in the claim that a volume is being made for it, by which plugin and where.
// Its finalizer keeps the claim until the volume is handed over or destroyed.
func (r *reconciler) promise(ctx context.Context, v *View) error {
	live, err := r.liveClaim(ctx, v)
	if err != nil {
		return err
	}
	base := live.DeepCopy()
	controllerutil.AddFinalizer(live, tarnv1.FinalizerInProcess)
	if live.Annotations == nil {
		live.Annotations = map[string]string{}
	}
	live.Annotations[tarnv1.AnnotationPlugin] = v.Plugin.Name
	if v.Plugin.Node != "" {
		live.Annotations[tarnv1.AnnotationNode] = v.Plugin.Node
	}
	if v.Plugin.Place != "" {
		live.Annotations[tarnv1.AnnotationPlace] = v.Plugin.Place
	}
	if err := r.patch(ctx, live, base); err != nil {
		return fmt.Errorf("recording that a volume is created for claim %s/%s: %w", live.Namespace, live.Name, err)
	}
	r.events.Eventf(live, nil, corev1.EventTypeNormal, eventStarted, "Provision", "%s is creating a volume for claim %s/%s", v.Plugin.Name, live.Namespace, live.Name)
	v.Claim = live
	return nil
}

// patch writes an object, if it is unchanged since it was read.
func (r *reconciler) patch(ctx context.Context, o, base client.Object) error {
	return r.client.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

// takeBack removes the promise from a claim. With giveBack it also removes the node that the
// scheduler has selected. If the claim has changed since it was read, it is reconciled again.
func (r *reconciler) takeBack(ctx context.Context, claim *corev1.PersistentVolumeClaim, giveBack bool) error {
	changed := claim.DeepCopy()
	controllerutil.RemoveFinalizer(changed, tarnv1.FinalizerInProcess)
	delete(changed.Annotations, tarnv1.AnnotationPlugin)
	delete(changed.Annotations, tarnv1.AnnotationNode)
	delete(changed.Annotations, tarnv1.AnnotationPlace)
	if giveBack {
		delete(changed.Annotations, volume.AnnSelectedNode)
	}
	if err := client.IgnoreNotFound(r.patch(ctx, changed, claim)); err != nil {
		return fmt.Errorf("removing the record that a volume is created for claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// work lets a plugin work for a limited time. It returns errUnfinished if the plugin then has
// more to do.
func work[T any](ctx context.Context, most time.Duration, call func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	result, err := call(limited)
	if err != nil && limited.Err() != nil && errors.Is(err, limited.Err()) && ctx.Err() == nil {
		err = errUnfinished
	}
	return result, err
}

// make has the volume made and writes its PersistentVolume. The volume's name finds again what
// was made before a crash.
func (r *reconciler) make(ctx context.Context, v *View) error {
	if _, err := r.liveClaim(ctx, v); err != nil {
		return err
	}
	existing, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if existing != nil {
		return r.adopt(v, existing)
	}
	want := newRequest(v)
	asset, err := work(ctx, step, func(ctx context.Context) (plugin.Asset, error) { return v.Plugin.Creator.Create(ctx, want) })
	if err == nil && asset.Bytes != 0 && asset.Bytes < want.Bytes {
		err = fmt.Errorf("%s created a volume of %s, but the claim requests %s", v.Plugin.Name, volume.Size(asset.Bytes), volume.Size(want.Bytes))
	}
	if errors.Is(err, errUnfinished) {
		return err
	}
	if err != nil {
		return r.makingFailed(ctx, v, err)
	}
	vol := newVolume(v, asset)
	err = r.client.Create(ctx, vol)
	if apierrors.IsAlreadyExists(err) {
		return kube.ErrStale // reconciled again
	}
	if err != nil {
		err = fmt.Errorf("writing PersistentVolume %s: %w", vol.Name, err)
		r.warn(v.Claim, eventFailed, "Save", err)
		return err
	}
	r.events.Eventf(v.Claim, nil, corev1.EventTypeNormal, eventSucceeded, "Provision", "PersistentVolume %s is created", vol.Name)
	v.Volume = vol
	return nil
}

// adopt uses the PersistentVolume that exists already, if it belongs to this claim and is not
// being deleted.
func (r *reconciler) adopt(v *View, live *corev1.PersistentVolume) error {
	var err error
	switch {
	case live.DeletionTimestamp != nil:
		err = fmt.Errorf("PersistentVolume %s exists and is being deleted; waiting until it is gone", v.VolumeName)
	case !sameClaim(live, v.Claim):
		err = fmt.Errorf("PersistentVolume %s exists and belongs to another claim; delete it to continue", v.VolumeName)
	default:
		v.Volume = live
		return nil
	}
	r.warn(v.Claim, eventFailed, "Adopt", err)
	return err
}

// makingFailed warns the claim. If the scheduler has chosen the node, the remains are destroyed
// there, and the scheduler chooses another node.
func (r *reconciler) makingFailed(ctx context.Context, v *View, err error) error {
	r.warn(v.Claim, eventFailed, "Create", err)
	if v.Claim.Annotations[volume.AnnSelectedNode] == "" {
		return err
	}
	if err := r.destroy(ctx, v, begunVolume(v), v.Claim, eventCleanupFailed); err != nil {
		return err
	}
	return r.takeBack(ctx, v.Claim, true)
}

// undo destroys what may have been made for a claim that no longer needs it. If its
// PersistentVolume exists already, undo leaves the decision to that volume.
func (r *reconciler) undo(ctx context.Context, v *View) error {
	live, err := kube.Get(ctx, r.reader, client.ObjectKey{Name: v.VolumeName}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if live != nil {
		return kube.ErrStale
	}
	if _, err := r.liveClaim(ctx, v); err != nil {
		return err
	}
	if err := r.destroy(ctx, v, begunVolume(v), v.Claim, eventCleanupFailed); err != nil {
		return err
	}
	return r.takeBack(ctx, v.Claim, false)
}

// destroy has the plugin delete a volume, and emits an Event about the given object if it
// cannot.
func (r *reconciler) destroy(ctx context.Context, v *View, doomed plugin.Volume, about client.Object, reason string) error {
	if v.Plugin.Deleter == nil {
		err := fmt.Errorf("%s cannot delete volumes; delete the storage of %s by hand", v.Plugin.Name, doomed.Name)
		r.warn(about, reason, "Delete", err)
		return err
	}
	_, err := work(ctx, step, func(ctx context.Context) (struct{}, error) { return struct{}{}, v.Plugin.Deleter.Delete(ctx, doomed) })
	switch {
	case err == nil, errors.Is(err, errUnfinished):
	case errors.Is(err, plugin.ErrInUse):
		r.events.Eventf(about, nil, corev1.EventTypeNormal, eventInUse, "Delete", "%s", kube.Note(err.Error()))
	default:
		r.warn(about, reason, "Delete", err)
	}
	return err
}
