package protect

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Indexes of the manager's cache.
const (
	// indexUnsettled finds the few claims that lack their finalizer, or are being deleted and have
	// it.
	indexUnsettled = "protect.unsettled"
	// indexClaimRef finds volumes by NAMESPACE/NAME of the claim they point at.
	indexClaimRef = "protect.claimRef"
)

// unsettled is the only value of indexUnsettled.
const unsettled = "true"

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &corev1.PersistentVolumeClaim{}, indexUnsettled, func(o client.Object) []string {
		if !unsettledClaim(change{current: o}) {
			return nil
		}
		return []string{unsettled}
	})
	if err != nil {
		return fmt.Errorf("indexing claims that are not settled: %w", err)
	}
	err = indexer.IndexField(ctx, &corev1.PersistentVolume{}, indexClaimRef, func(o client.Object) []string {
		vol, ok := o.(*corev1.PersistentVolume)
		if !ok || vol.Spec.ClaimRef == nil {
			return nil
		}
		return []string{vol.Spec.ClaimRef.Namespace + "/" + vol.Spec.ClaimRef.Name}
	})
	if err != nil {
		return fmt.Errorf("indexing volumes by claim: %w", err)
	}
	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// change is an object before and after an event. old is nil for a new object, current for a deleted
// one.
type change struct{ old, current client.Object }

// on calls do for every event.
func on(do func(context.Context, change, queue)) handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { do(ctx, change{current: e.Object}, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { do(ctx, change{e.ObjectOld, e.ObjectNew}, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { do(ctx, change{old: e.Object}, q) },
	}
}

// eachNamespace enqueues the namespaces of the changes that matter.
func eachNamespace(matters func(change) bool) handler.Funcs {
	return on(func(_ context.Context, c change, q queue) {
		if !matters(c) {
			return
		}
		o := c.current
		if o == nil {
			o = c.old
		}
		q.Add(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace()}})
	})
}

// unsettledClaim says that a claim lacks its finalizer, or is being deleted and has it.
func unsettledClaim(c change) bool {
	claim, ok := c.current.(*corev1.PersistentVolumeClaim)
	return ok && unsettledObject(claim, FinalizerClaim)
}

// freeing says that a pod may have stopped using claims: it is gone, has ended, or has no node. A
// pod counts as gone too if another one of its name replaced it between two events.
func freeing(c change) bool {
	before, was := c.old.(*corev1.Pod)
	after, is := c.current.(*corev1.Pod)
	switch {
	case was && len(volume.ClaimsOfPod(before)) > 0 && (!is || before.UID != after.UID):
		return true
	case !is || len(volume.ClaimsOfPod(after)) == 0:
		return false
	}
	return after.Spec.NodeName == "" || volume.Ended(after) || volume.ShutDown(after)
}

// eachUnmounted enqueues the namespaces of the claims whose volume lost a mount. The kubelet
// unmounts an ended pod's volumes a moment after its end.
func (r *claims) eachUnmounted() handler.Funcs {
	return on(func(ctx context.Context, c change, q queue) {
		before, was := c.old.(*tarnv1.PavStage)
		after, is := c.current.(*tarnv1.PavStage)
		if !was || is && before.UID == after.UID && !lostTarget(before, after) {
			return
		}
		vol, err := kube.Get(ctx, r.client, client.ObjectKey{Name: before.Spec.VolumeName}, &corev1.PersistentVolume{})
		if err != nil {
			log.FromContext(ctx).Error(err, "reading a volume that was unmounted", "volume", before.Spec.VolumeName)
			return
		}
		if vol != nil && vol.Spec.ClaimRef != nil {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: vol.Spec.ClaimRef.Namespace}})
		}
	})
}

// lostTarget says that a stage lost a target.
func lostTarget(before, after *tarnv1.PavStage) bool {
	return slices.ContainsFunc(before.Status.Node.Targets, func(target string) bool { return !slices.Contains(after.Status.Node.Targets, target) })
}

// eachVolume enqueues the volumes that lack their finalizer, or are being deleted and have it.
func eachVolume() handler.Funcs {
	return on(func(_ context.Context, c change, q queue) {
		if vol, ok := c.current.(*corev1.PersistentVolume); ok && unsettledObject(vol, FinalizerVolume) {
			q.Add(volumeRequest(vol.Name))
		}
	})
}

// eachClaimed enqueues the volumes being deleted whose claim is gone or has just got another
// volume.
func (r *volumes) eachClaimed() handler.Funcs {
	return on(func(ctx context.Context, c change, q queue) {
		before, was := c.old.(*corev1.PersistentVolumeClaim)
		after, is := c.current.(*corev1.PersistentVolumeClaim)
		if !was || is && before.UID == after.UID && before.Spec.VolumeName == after.Spec.VolumeName {
			return
		}
		list := &corev1.PersistentVolumeList{}
		key := before.Namespace + "/" + before.Name
		if err := r.client.List(ctx, list, client.MatchingFields{indexClaimRef: key}, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing the volumes that may have waited for a claim", "claim", key)
			return
		}
		for i := range list.Items {
			if unsettledObject(&list.Items[i], FinalizerVolume) {
				q.Add(volumeRequest(list.Items[i].Name))
			}
		}
	})
}

func volumeRequest(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}
}
