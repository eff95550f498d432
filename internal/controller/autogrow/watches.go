package autogrow

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// placed passes pods that have a node, once: nothing else about them matters. A pod that is gone
// is noticed when its node is due.
func placed() predicate.TypedPredicate[*corev1.Pod] {
	return predicate.TypedFuncs[*corev1.Pod]{
		UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Pod]) bool {
			return e.ObjectOld.Spec.NodeName != e.ObjectNew.Spec.NodeName
		},
		DeleteFunc: func(event.TypedDeleteEvent[*corev1.Pod]) bool { return false },
	}
}

// mapPod enqueues the node of a pod that uses an annotated claim.
func (r *reconciler) mapPod(ctx context.Context, pod *corev1.Pod) []reconcile.Request {
	if pod.Spec.NodeName == "" {
		return nil
	}
	for _, name := range volume.ClaimsOfPod(pod) {
		claim, _, err := r.annotated(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name})
		if err != nil {
			log.FromContext(ctx).Error(err, "reading a claim of a pod", "pod", client.ObjectKeyFromObject(pod))
		}
		if claim != nil {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: pod.Spec.NodeName}}}
		}
	}
	return nil
}

// mapClaim enqueues the nodes on which pods use an annotated claim.
func (r *reconciler) mapClaim(ctx context.Context, o client.Object) []reconcile.Request {
	claim, _, err := r.annotated(ctx, client.ObjectKeyFromObject(o))
	if err != nil {
		log.FromContext(ctx).Error(err, "reading a claim", "claim", client.ObjectKeyFromObject(o))
	}
	if claim == nil {
		r.forgetClaim(o.GetUID())
		return nil
	}
	pods := &corev1.PodList{}
	if err := r.pods.List(ctx, pods, client.InNamespace(claim.Namespace), client.MatchingFields{kube.PodsByClaim: claim.Name}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the pods of a claim", "claim", client.ObjectKeyFromObject(o))
		return nil
	}
	var requests []reconcile.Request
	for i := range pods.Items {
		if node := pods.Items[i].Spec.NodeName; node != "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: node}})
		}
	}
	return requests
}

// mapClass enqueues the nodes of the claims of a class, because its setting may have changed.
func (r *reconciler) mapClass(ctx context.Context, class client.Object) []reconcile.Request {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := r.client.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the claims of a class", "class", class.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range claims.Items {
		if volume.ClassOf(&claims.Items[i]) == class.GetName() {
			requests = append(requests, r.mapClaim(ctx, &claims.Items[i])...)
		}
	}
	return requests
}
