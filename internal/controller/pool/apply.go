package pool

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// eventAction is the action that Events name.
const eventAction = "Pool"

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=create;delete,namespace=tarn-system
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=create;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets,verbs=patch
// +kubebuilder:rbac:groups=tarn.dev,resources=persistentvolumesets/status;persistentvolumesetscalers/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// apply carries out a plan and returns all errors joined. A failed write does not stop it: a
// rejected filler must not delay volumes on their way into the pool. After each write apply
// updates the view's set, so that the next write is checked against that version. It also notes
// the first rejection of a filler in the view.
func (r *reconciler) apply(ctx context.Context, v *View, actions []Action) error {
	var failed []error
	for _, a := range actions {
		if ctx.Err() != nil {
			return errors.Join(append(failed, ctx.Err())...)
		}
		failed = append(failed, r.do(ctx, v, a))
	}
	return errors.Join(failed...)
}

func (r *reconciler) do(ctx context.Context, v *View, a Action) error {
	switch a := a.(type) {
	case Hold:
		base := v.Set.DeepCopy()
		controllerutil.AddFinalizer(v.Set, tarnv1.FinalizerPool)
		return r.patchSet(ctx, v.Set, base)
	case LetGo:
		return kube.RemoveFinalizer(ctx, r.client, v.Set, tarnv1.FinalizerPool)
	case MakeClass:
		return r.fill(ctx, v, a.Class.DeepCopy())
	case DropClass:
		return r.delete(ctx, a.Class, client.Preconditions{UID: &a.Class.UID})
	case Order:
		return r.fill(ctx, v, a.Claim.DeepCopy())
	case Dismiss:
		return r.delete(ctx, a.Claim, client.Preconditions{UID: &a.Claim.UID})
	case StartPod:
		return r.fill(ctx, v, a.Pod.DeepCopy())
	case StopPod:
		return r.delete(ctx, a.Pod, client.Preconditions{UID: &a.Pod.UID})
	case Change:
		return r.change(ctx, a)
	case Remove:
		return r.delete(ctx, a.Volume, client.Preconditions{UID: &a.Volume.UID, ResourceVersion: &a.Volume.ResourceVersion})
	case WriteStatus:
		return r.writeStatus(ctx, v.Set, a.Status)
	case Follow:
		base := v.Set.DeepCopy()
		v.Set.Spec.MinimumReplicas = a.Minimum
		return r.patchSet(ctx, v.Set, base)
	case WriteScaler:
		return r.writeScaler(ctx, a)
	case Post:
		r.events.Eventf(v.Set, nil, a.Type, a.Reason, doing(a), "%s", kube.Note(a.Note))
		return nil
	case Together:
		for _, one := range a {
			if err := r.do(ctx, v, one); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("pool: unknown action %T", a)
}

// doing is the action that an Event names. Kubernetes merges Events that differ only in their
// note, so each Event that names what is kept has its own action.
func doing(p Post) string {
	if p.Reason == eventKept {
		return fmt.Sprintf("%s%08x", eventAction, crc32.ChecksumIEEE([]byte(p.Note)))
	}
	return eventAction
}

// fill creates a filler object. If the name exists already, the cache was stale, and the
// object's event triggers the next reconcile of the set.
func (r *reconciler) fill(ctx context.Context, v *View, o client.Object) error {
	err := r.client.Create(ctx, o)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	err = fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
	if v.Refused == "" {
		v.Refused = refusal(err)
	}
	return err
}

func (r *reconciler) delete(ctx context.Context, o client.Object, only client.Preconditions) error {
	if err := r.client.Delete(ctx, o, only); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

// change writes a volume. If the binder or another writer has changed it meanwhile, the write
// fails.
func (r *reconciler) change(ctx context.Context, a Change) error {
	err := r.client.Patch(ctx, a.To.DeepCopy(), client.MergeFromWithOptions(a.From, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing PersistentVolume %s: %w", a.From.Name, err)
	}
	return nil
}

func (r *reconciler) patchSet(ctx context.Context, set, base *tarnv1.PersistentVolumeSet) error {
	err := r.client.Patch(ctx, set, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing PersistentVolumeSet %s: %w", set.Name, err)
	}
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, set *tarnv1.PersistentVolumeSet, status tarnv1.PersistentVolumeSetStatus) error {
	base := set.DeepCopy()
	set.Status = status
	err := r.client.Status().Patch(ctx, set, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of PersistentVolumeSet %s: %w", set.Name, err)
	}
	return nil
}

func (r *reconciler) writeScaler(ctx context.Context, a WriteScaler) error {
	to := a.Scaler.DeepCopy()
	to.Status = a.Status
	err := r.client.Status().Patch(ctx, to, client.MergeFromWithOptions(a.Scaler, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of PersistentVolumeSetScaler %s/%s: %w", to.Namespace, to.Name, err)
	}
	return nil
}

// refusal returns the message of the API server if it rejected a filler because of a quota, a
// policy or a field. A retry alone does not change that.
func refusal(err error) string {
	if kube.IsRefusal(err) {
		return err.Error()
	}
	return ""
}
