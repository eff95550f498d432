package expand

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// Options are what the controller needs besides the manager.
type Options struct {
	Steps *steppod.Steps
	// MaxConcurrent is how many volumes are reconciled at once; 0 means one.
	MaxConcurrent int
	// Clock is the clock to use; nil means the real one.
	Clock clock.PassiveClock
}

type reconciler struct {
	client client.Client
	live   client.Reader
	runner action.Runner
	steps  *steppod.Steps
	clock  clock.PassiveClock
}

// Register adds the controller to a manager. Its queue holds names of volumes.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), steps: o.Steps, clock: o.Clock,
		runner: action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName), Steps: o.Steps},
	}
	r.runner.Own = r.own
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("expand").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&tarnv1.PavVolume{}, builder.WithPredicates(predicate.NewPredicateFuncs(hasJournal))).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapClaim)).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapVolume), builder.WithPredicates(resized())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &tarnv1.PavVolume{}),
			builder.WithPredicates(predicate.NewPredicateFuncs(isExpansion))).
		Watches(&pavv1.PavProvisioner{}, handler.EnqueueRequestsFromMapFunc(r.mapProvisioner), builder.WithPredicates(kube.ProvisionerJudged())).
		Complete(r)
}

// Reconcile gathers, plans and applies. If the API server rejects a pod, it adds the rejection to
// the view and plans once more. The cache does not have what was written before the pod yet.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, request.NamespacedName, now)
	if err != nil || v == nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	p := plan(v, now)
	err = r.runner.Do(ctx, p.Actions...)
	if refused := steppod.AsStepError(err); refused != nil {
		// Into empty objects: decoding keeps fields that the answer does not have.
		record, claim := &tarnv1.PavVolume{}, &corev1.PersistentVolumeClaim{}
		if err = errors.Join(r.live.Get(ctx, request.NamespacedName, record), r.live.Get(ctx, client.ObjectKeyFromObject(v.Claim), claim)); err == nil {
			v.Unfit, v.Record, v.Claim = refused, record, claim
			v.Observed = steppod.Observation{State: steppod.PodAbsent} // that of the attempt before is over
			p = plan(v, now)
			err = r.runner.Do(ctx, p.Actions...)
		}
	}
	return kube.Outcome(client.IgnoreNotFound(err), p.Next, now)
}

// hasJournal passes records for which an expansion was ever requested.
func hasJournal(o client.Object) bool {
	record, ok := o.(*tarnv1.PavVolume)
	return ok && record.Status.Expansion != nil
}

func isExpansion(o client.Object) bool {
	return o.GetLabels()[tarnv1.LabelStep] == string(tarnv1.StepExpansion)
}

// resized passes volumes whose capacity has changed.
func resized() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // the claim has an event of its own
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, ok := e.ObjectOld.(*corev1.PersistentVolume)
			current, ok2 := e.ObjectNew.(*corev1.PersistentVolume)
			return ok && ok2 && quantityOf(old.Spec.Capacity) != quantityOf(current.Spec.Capacity)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

func mapClaim(_ context.Context, o client.Object) (requests []reconcile.Request) {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if ok && claim.Labels[tarnv1.LabelRecord] != "" { // it was made for a volume, which may wait for its size
		requests = append(requests, request(claim.Labels[tarnv1.LabelVolume]))
	}
	// A claim that is not Bound yet has no capacity, so it would seem to request more.
	if !ok || claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound || !resizing(claim) {
		return requests
	}
	return append(requests, request(claim.Spec.VolumeName))
}

// mapVolume enqueues a volume that was expanded by hand. A volume that Tarn created grows through
// its record, whose events enqueue it.
func (r *reconciler) mapVolume(ctx context.Context, o client.Object) []reconcile.Request {
	record, err := kube.Get(ctx, r.client, client.ObjectKeyFromObject(o), &tarnv1.PavVolume{}, client.UnsafeDisableDeepCopy)
	if err != nil {
		log.FromContext(ctx).Error(err, "reading the record of a volume that has another size", "volume", o.GetName())
	}
	if record != nil {
		return nil
	}
	return []reconcile.Request{request(o.GetName())}
}

// mapProvisioner enqueues the volumes whose claims may wait for their provisioner.
func (r *reconciler) mapProvisioner(ctx context.Context, o client.Object) []reconcile.Request {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := r.client.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the claims that may wait for a provisioner", "provisioner", o.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range claims.Items {
		requests = append(requests, mapClaim(ctx, &claims.Items[i])...)
	}
	return requests
}
