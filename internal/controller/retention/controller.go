package retention

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// Options are what the controller needs besides the manager.
type Options struct {
	// Namespace is Tarn's own. The controller ignores volumes of claims in it.
	Namespace string
	// MaxConcurrent is how many volumes are reconciled at once; 0 means one.
	MaxConcurrent int
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

type reconciler struct {
	client    client.Reader // cached
	reader    client.Reader // live
	claims    kube.Claims
	runner    action.Runner
	clock     clock.PassiveClock
	namespace string
}

// Register adds the controller to a manager. Requests are names of volumes.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(),
		runner: action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName)},
		claims: kube.Claims{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		clock:  o.Clock, namespace: o.Namespace,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	if err := kube.IndexClaims(context.Background(), mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("trash").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&corev1.PersistentVolume{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapClaim), builder.WithPredicates(whatIsRemembered)).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.mapClass), builder.WithPredicates(kube.Later())).
		Watches(&tarnv1.PersistentVolumeSet{}, handler.EnqueueRequestsFromMapFunc(r.mapSet), builder.WithPredicates(kube.Later(), predicate.AnnotationChangedPredicate{})).
		Complete(r)
}

// Reconcile gathers, plans and applies for one volume.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, request.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := plan(v, now)
	err = r.apply(ctx, v, p)
	return kube.Outcome(err, p.Next, now)
}

// whatIsRemembered passes updates that give a claim its volume, or that change what is
// remembered of the claim. The volume's own event may have come before the claim was in the
// cache. Deletions pass too: the volume may be Released while the cache still has the claim,
// and no later event of the volume follows.
var whatIsRemembered = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*corev1.PersistentVolumeClaim)
		now, ok2 := e.ObjectNew.(*corev1.PersistentVolumeClaim)
		return !ok || !ok2 || old.Spec.VolumeName != now.Spec.VolumeName || !volume.SameMemory(old, now)
	},
}

func mapClaim(_ context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.VolumeName == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: claim.Spec.VolumeName}}}
}

// mapClass enqueues the volumes of a class, because the retention of the class may have
// changed.
func (r *reconciler) mapClass(ctx context.Context, o client.Object) []reconcile.Request {
	return r.volumes(ctx, o, func(vol *corev1.PersistentVolume) bool { return volume.ClassOfVolume(vol) == o.GetName() })
}

// mapSet enqueues the volumes that a set selects.
func (r *reconciler) mapSet(ctx context.Context, o client.Object) []reconcile.Request {
	set, ok := o.(*tarnv1.PersistentVolumeSet)
	if !ok {
		return nil
	}
	return r.volumes(ctx, o, func(vol *corev1.PersistentVolume) bool { return volume.Selects(set, vol) })
}

func (r *reconciler) volumes(ctx context.Context, changed client.Object, concerned func(*corev1.PersistentVolume) bool) []reconcile.Request {
	list := &corev1.PersistentVolumeList{}
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing volumes", "changed", changed.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if concerned(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
		}
	}
	return requests
}
