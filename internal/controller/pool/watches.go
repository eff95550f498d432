package pool

import (
	"context"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// soon enqueues the sets that an object concerns, before or after the event, with a delay of
// gatherTime.
func (r *reconciler) soon(concerned func(*tarnv1.PersistentVolumeSet, client.Object) bool) handler.Funcs {
	return kube.Soon(gatherTime, func(ctx context.Context, old, current client.Object) []string {
		list := &tarnv1.PersistentVolumeSetList{}
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing PersistentVolumeSets")
			return nil
		}
		var names []string
		for i := range list.Items {
			if set := &list.Items[i]; old != nil && concerned(set, old) || current != nil && concerned(set, current) {
				names = append(names, set.Name)
			}
		}
		return names
	})
}

// concernsSet reports whether a changed set is this set or a neighbour.
func concernsSet(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	return set.Name == o.GetName() || concernsNeighbour(set, o)
}

// concernsVolume reports whether the set selects a volume, or the volume belongs to one of its
// filler claims.
func (r *reconciler) concernsVolume(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	vol, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return false
	}
	ref := vol.Spec.ClaimRef
	return volume.Selects(set, vol) ||
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

// concernsAll is always true: any provisioner may be that of a set's class, and any node may be
// that of its spares.
func concernsAll(*tarnv1.PersistentVolumeSet, client.Object) bool { return true }

// opensOrCloses passes the events of a node by which it may begin or cease to accept spares.
func opensOrCloses() predicate.Predicate {
	return predicate.TypedFuncs[client.Object]{UpdateFunc: func(e event.UpdateEvent) bool {
		old, wasNode := e.ObjectOld.(*corev1.Node)
		current, isNode := e.ObjectNew.(*corev1.Node)
		return wasNode && isNode && (old.Spec.Unschedulable != current.Spec.Unschedulable || (old.DeletionTimestamp == nil) != (current.DeletionTimestamp == nil) ||
			!equality.Semantic.DeepEqual(old.Spec.Taints, current.Spec.Taints) || !maps.Equal(old.Labels, current.Labels))
	}}
}

// ends passes only the end of claims.
func ends() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// concernsHolder reports whether an ended claim named a selected volume without claimRef. The
// claim may have been all that held the volume.
func (r *reconciler) concernsHolder(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.VolumeName == "" {
		return false
	}
	vol := &corev1.PersistentVolume{}
	if err := r.client.Get(context.Background(), types.NamespacedName{Name: claim.Spec.VolumeName}, vol); err != nil {
		return false // not in the cache
	}
	return vol.Spec.ClaimRef == nil && r.concernsVolume(set, vol)
}
