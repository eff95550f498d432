package provision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

func storageClass() client.Object { return &storagev1.StorageClass{} }

// indexes are the indexes of claims. All but the index by UID contain only claims that wait for a
// volume.
func indexes() map[string]client.IndexerFunc {
	waiting := func(key func(*corev1.PersistentVolumeClaim) string) client.IndexerFunc {
		return func(o client.Object) []string {
			claim, ok := o.(*corev1.PersistentVolumeClaim)
			if !ok || claim.Spec.VolumeName != "" {
				return nil
			}
			return []string{key(claim)}
		}
	}
	return map[string]client.IndexerFunc{
		indexClaimUID:         kube.UIDOf,
		indexClaimProvisioner: waiting(provisionerName),
		indexClaimClass:       waiting(className),
	}
}

func addIndexes(mgr ctrl.Manager) error {
	for name, key := range indexes() {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.PersistentVolumeClaim{}, name, key); err != nil {
			return err
		}
	}
	if err := kube.IndexHandles(context.Background(), mgr); err != nil {
		return err
	}
	return kube.IndexHandlesAwaited(context.Background(), mgr)
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// namesProvisioner passes events of claims that may be for a PavProvisioner. Thousands of other
// claims, bound to existing volumes or served by other provisioners, have no record. If a claim
// lost the provisioner's name after it got a record, that update and its deletion pass.
var namesProvisioner = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return asksProvisioner(e.Object) },
	UpdateFunc: func(e event.UpdateEvent) bool { return asksProvisioner(e.ObjectOld) || asksProvisioner(e.ObjectNew) },
}

func asksProvisioner(o client.Object) bool {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	return ok && mayBeOurs(provisionerName(claim))
}

func mapClaim(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(volumeName(o.GetUID()))}
}

func mapVolume(_ context.Context, o client.Object) []reconcile.Request {
	if _, ok := claimUID(o.GetName()); !ok {
		return nil
	}
	return []reconcile.Request{request(o.GetName())}
}

// mapHolder enqueues the records that may wait for the handle of a record or volume.
func (r *reconciler) mapHolder(ctx context.Context, o client.Object) []reconcile.Request {
	return kube.HandleWaiters(ctx, r.client, o)
}

// mapProvisioner enqueues the claims that wait for a provisioner, and its records that are not
// Created.
func (r *reconciler) mapProvisioner(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.waiting(ctx, client.MatchingFields{indexClaimProvisioner: o.GetName()})
	records := &tarnv1.PavVolumeList{}
	if err := r.client.List(ctx, records, client.MatchingLabels{tarnv1.LabelProvisioner: o.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the records of a provisioner", "provisioner", o.GetName())
	}
	for i := range records.Items {
		if records.Items[i].Status.Phase != tarnv1.VolumeCreated {
			requests = append(requests, request(records.Items[i].Name))
		}
	}
	return requests
}

func (r *reconciler) mapClass(ctx context.Context, o client.Object) []reconcile.Request {
	return r.waiting(ctx, client.MatchingFields{indexClaimClass: o.GetName()})
}

func (r *reconciler) waiting(ctx context.Context, which client.ListOption) []reconcile.Request {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := r.client.List(ctx, claims, which, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing claims")
		return nil
	}
	var requests []reconcile.Request
	for i := range claims.Items {
		requests = append(requests, request(volumeName(claims.Items[i].UID)))
	}
	return requests
}

// nextLook is when to reconcile again: the plan's own time, or the time of the next attempt. An
// attempt that is overdue waits for an event.
func nextLook(v *View, p Plan, now time.Time) time.Time {
	if v.Record != nil && v.Record.Status.Phase == tarnv1.VolumePending {
		if at := v.Record.Status.NextAttemptTime; at != nil && at.After(now) {
			return at.Time
		}
	}
	if p.Next.IsZero() && (p.Act == ActBegin || p.Act == ActCreate || p.Act == ActRevalidate || p.Act == ActRecreate) && !waitsForHandle(v.Record) {
		return now.Add(startedLook)
	}
	return p.Next
}

// startedLook is when a new pod is checked without an event. Events come from a cache that selects
// pods by a label, which a user may remove.
const startedLook = time.Minute
