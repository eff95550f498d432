package reclaim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
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
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch;delete;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes,verbs=get;list;watch;delete;patch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages;persistentvolumesets,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	indexStageVolume = "reclaim.volume"
)

// Options are what the controller needs besides the manager.
type Options struct {
	Steps *steppod.Steps
	// Namespace is Tarn's own namespace. The volumes of its claims hold no user data.
	Namespace string
	// OwnBinder says that Tarn's binder replaces Kubernetes' binder, which would set volumes to
	// Failed that no provisioner can delete.
	OwnBinder bool
	// MaxConcurrent is how many volumes are reconciled at once; 0 means one.
	MaxConcurrent int
	// Clock is the clock to use; nil means the real one.
	Clock clock.PassiveClock
}

type reconciler struct {
	client  client.Client
	reader  client.Reader // live
	handles kube.Handles
	claims  kube.Claims
	steps   *steppod.Steps
	events  events.EventRecorder
	clock   clock.PassiveClock

	namespace string
	ownBinder bool
}

// Register adds the controller to a manager. Its queue holds names of records, which are those of
// their volumes.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), steps: o.Steps, namespace: o.Namespace, ownBinder: o.OwnBinder,
		handles: kube.Handles{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		claims:  kube.Claims{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		events:  mgr.GetEventRecorder(kube.ControllerName), clock: o.Clock,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &tarnv1.PavStage{}, indexStageVolume, func(o client.Object) []string {
		stage, ok := o.(*tarnv1.PavStage)
		if !ok {
			return nil
		}
		return []string{stage.Spec.VolumeName}
	})
	if err != nil {
		return fmt.Errorf("indexing stages: %w", err)
	}
	if err := kube.IndexHandles(context.Background(), mgr); err != nil {
		return err
	}
	if err := kube.IndexHandlesAwaited(context.Background(), mgr); err != nil {
		return err
	}
	if err := kube.IndexClaims(context.Background(), mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("reclaim").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&tarnv1.PavVolume{}).
		Watches(&tarnv1.PavVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapHolder)).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapHolder)).
		Watches(&corev1.PersistentVolume{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(whatMayEnd())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &tarnv1.PavVolume{})).
		Watches(&tarnv1.PavStage{}, handler.EnqueueRequestsFromMapFunc(mapStage)).
		Watches(&pavv1.PavProvisioner{}, handler.EnqueueRequestsFromMapFunc(r.mapProvisioner), builder.WithPredicates(kube.ProvisionerJudged())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.mapNode), builder.WithPredicates(newNodes())).
		Complete(r)
}

// Reconcile brings the deletion of one volume a step further.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	v, err := r.gather(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v.Record == nil {
		return r.strangers(ctx, v)
	}
	for {
		plan := decide(v, r.clock.Now())
		more, err := r.apply(ctx, v, plan)
		if err != nil || !more {
			return kube.Outcome(err, nextLook(v, plan, r.clock.Now()), r.clock.Now())
		}
	}
}

// nextLook is when to reconcile again: the plan's own time, or the time of the next attempt. An
// attempt that is overdue waits for an event.
func nextLook(v *View, p Plan, now time.Time) time.Time {
	if at := v.Record.Status.NextDeletionTime; at != nil && at.After(now) {
		return at.Time
	}
	return p.Next
}

func mapStage(_ context.Context, o client.Object) []reconcile.Request {
	stage, ok := o.(*tarnv1.PavStage)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: stage.Spec.VolumeName}}}
}

// mapHolder enqueues the records that may wait for the handle of a record or volume.
func (r *reconciler) mapHolder(ctx context.Context, o client.Object) []reconcile.Request {
	return kube.HandleWaiters(ctx, r.client, o)
}

// mapProvisioner enqueues the records that may wait for a provisioner to return.
func (r *reconciler) mapProvisioner(ctx context.Context, o client.Object) []reconcile.Request {
	return r.destroying(ctx, func(*tarnv1.PavVolume) bool { return true }, client.MatchingLabels{tarnv1.LabelProvisioner: o.GetName()})
}

// mapNode enqueues the records that may wait for a node to return.
func (r *reconciler) mapNode(ctx context.Context, o client.Object) []reconcile.Request {
	return r.destroying(ctx, func(record *tarnv1.PavVolume) bool { return record.Status.NodeName == o.GetName() })
}

// whatMayEnd passes the updates of a volume that is or was released. For other volumes a plan
// depends only on the fact that they are not released, so other changes, such as a binding, cannot
// change it. Updates without a change come from the periodic resync, and pass.
func whatMayEnd() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*corev1.PersistentVolume)
		now, ok2 := e.ObjectNew.(*corev1.PersistentVolume)
		return !ok || !ok2 || old.ResourceVersion == now.ResourceVersion || released(old) || released(now)
	}}
}

// newNodes passes nodes that are created while the controller runs. At its start the controller
// checks every record anyway.
func newNodes() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return !e.IsInInitialList },
		UpdateFunc:  func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() }, // if the deletion event was missed
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// destroying returns requests for those of the listed records whose storage is being destroyed.
func (r *reconciler) destroying(ctx context.Context, those func(*tarnv1.PavVolume) bool, listed ...client.ListOption) []reconcile.Request {
	records := &tarnv1.PavVolumeList{}
	if err := r.client.List(ctx, records, append(listed, client.UnsafeDisableDeepCopy)...); err != nil {
		log.FromContext(ctx).Error(err, "listing records")
		return nil
	}
	var requests []reconcile.Request
	for i := range records.Items {
		record := &records.Items[i]
		if phase := record.Status.Phase; (phase == tarnv1.VolumeUndoing || phase == tarnv1.VolumeDeleting) && those(record) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: record.Name}})
		}
	}
	return requests
}
