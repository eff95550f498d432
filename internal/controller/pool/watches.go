package pool

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/volume"
)

// soon enqueues the sets that an object concerns, as it was or as it is, gatherTime
// later. The queue holds one entry a set, however many events name it meanwhile.
func (r *reconciler) soon(concerned func(*tarnv1.PersistentVolumeSet, client.Object) bool) handler.Funcs {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, q queue, o client.Object) {
		list := &tarnv1.PersistentVolumeSetList{}
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing PersistentVolumeSets", "changed", o.GetName())
			return
		}
		for i := range list.Items {
			if concerned(&list.Items[i], o) {
				q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}}, gatherTime)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			add(ctx, q, e.ObjectOld)
			add(ctx, q, e.ObjectNew)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, q, e.Object) },
	}
}

// concernsSet: it is the set itself, or a neighbour.
func concernsSet(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	return set.Name == o.GetName() || concernsNeighbour(set, o)
}

// concernsVolume: it is selected, or the volume of a filler claim.
func (r *reconciler) concernsVolume(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	vol, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return false
	}
	ref := vol.Spec.ClaimRef
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(vol.Labels)) ||
		ref != nil && ref.Namespace == r.namespace && strings.HasPrefix(ref.Name, fillerPrefix(set.UID))
}

func (r *reconciler) isFiller(o client.Object) bool {
	return o.GetNamespace() == r.namespace && strings.HasPrefix(o.GetName(), volume.PoolPrefix)
}

func concernsFiller(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	return strings.HasPrefix(o.GetName(), fillerPrefix(set.UID))
}

func concernsClass(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	return o.GetName() == set.Spec.Template.Spec.StorageClassName || o.GetName() == fillerClassName(set)
}

func (r *reconciler) isFillerRecord(o client.Object) bool {
	record, ok := o.(*tarnv1.PavVolume)
	return ok && record.Spec.Claim.Namespace == r.namespace && record.Status.LastError != nil
}

func (r *reconciler) concernsRecord(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	record, ok := o.(*tarnv1.PavVolume)
	return ok && strings.HasPrefix(record.Spec.Claim.Name, fillerPrefix(set.UID))
}

// concernsProvisioner: any may be that of a set's class.
func concernsProvisioner(*tarnv1.PersistentVolumeSet, client.Object) bool { return true }

// ends lets the ends of claims pass alone.
func ends() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// concernsHolder: the claim named a volume that is selected and points at no claim,
// and may have been all that held it.
func (r *reconciler) concernsHolder(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.VolumeName == "" {
		return false
	}
	vol := &corev1.PersistentVolume{}
	if err := r.client.Get(context.Background(), types.NamespacedName{Name: claim.Spec.VolumeName}, vol); err != nil {
		return false // from the cache: it is not there
	}
	return vol.Spec.ClaimRef == nil && r.concernsVolume(set, vol)
}
