package apps

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// asked passes changes that request something of an App. Its own status does not enqueue it.
func asked() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld, e.ObjectNew
		return old.GetGeneration() != now.GetGeneration() || old.GetDeletionTimestamp().IsZero() != now.GetDeletionTimestamp().IsZero() ||
			!slices.Equal(old.GetFinalizers(), now.GetFinalizers())
	}}
}

// allowsMore passes a class that is new or gone, or whose allowVolumeExpansion has changed.
func allowsMore() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*storagev1.StorageClass)
		now, ok2 := e.ObjectNew.(*storagev1.StorageClass)
		return ok && ok2 && ptr.Deref(old.AllowVolumeExpansion, false) != ptr.Deref(now.AllowVolumeExpansion, false)
	}}
}

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
}

// ofLabel enqueues the App that an object's label names.
func ofLabel(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[tarnv1.LabelApp]
	if name == "" {
		return nil
	}
	return []reconcile.Request{request(o.GetNamespace(), name)}
}

// ofClaim enqueues the App of a claim, and the Apps that cannot create their own claim of that
// name.
func (r *reconciler) ofClaim(ctx context.Context, o client.Object) []reconcile.Request {
	requests := ofLabel(ctx, o)
	if !strings.HasPrefix(o.GetName(), prefix) {
		return requests
	}
	return append(requests, r.apps(ctx, client.InNamespace(o.GetNamespace()), func(app *tarnv1.App) bool {
		return app.Name != o.GetLabels()[tarnv1.LabelApp] && slices.ContainsFunc(app.Spec.Volumes, func(v tarnv1.AppVolume) bool {
			return appspec.ClaimName(app.Name, v.Name) == o.GetName()
		})
	})...)
}

// ofClass enqueues the Apps that may have been rejected because of a class.
func (r *reconciler) ofClass(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.apps(ctx, client.InNamespace(corev1.NamespaceAll), func(app *tarnv1.App) bool {
		return meta.IsStatusConditionFalse(app.Status.Conditions, tarnv1.ConditionDeployed)
	})
}

func (r *reconciler) apps(ctx context.Context, in client.InNamespace, concerned func(*tarnv1.App) bool) []reconcile.Request {
	list := &tarnv1.AppList{}
	if err := r.client.List(ctx, list, in, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing Apps", "namespace", string(in))
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if concerned(&list.Items[i]) {
			requests = append(requests, request(list.Items[i].Namespace, list.Items[i].Name))
		}
	}
	return requests
}
