package pavvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
	"tarn.dev/tarn/internal/volume"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,verbs=list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=tarn.dev,resources=pavstages;persistentvolumesets,verbs=list;watch
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	indexClaimUID         = "pavvolume.uid"
	indexClaimProvisioner = "pavvolume.provisioner"
	indexClaimClass       = "pavvolume.class"
	indexStageVolume      = "pavvolume.stages"
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
	runner  action.Runner
	handles kube.Handles
	claims  kube.Claims
	steps   *steppod.Steps
	clock   clock.PassiveClock

	namespace string
	ownBinder bool
}

// Register adds the controller to a manager. Its queue holds names of volumes, which are those of
// their records. A volume that Tarn creates is named pvc-<UID of the claim>.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), steps: o.Steps, clock: o.Clock,
		runner:    action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName), Live: mgr.GetAPIReader(), Steps: o.Steps},
		handles:   kube.Handles{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		claims:    kube.Claims{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		namespace: o.Namespace, ownBinder: o.OwnBinder,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	if err := addIndexes(mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("pavvolume").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&tarnv1.PavVolume{}).
		Watches(&tarnv1.PavVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapHolder)).
		Watches(&tarnv1.PavVolume{}, handler.EnqueueRequestsFromMapFunc(mapCopied)).
		Watches(&tarnv1.PavVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapSource), builder.WithPredicates(kube.Later())).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.mapSource), builder.WithPredicates(kube.Later())).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapSource), builder.WithPredicates(kube.Later())).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapHolder)).
		Watches(&corev1.PersistentVolume{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(whatMayEnd())).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapClaim), builder.WithPredicates(namesProvisioner)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapMade), builder.WithPredicates(predicate.NewPredicateFuncs(isMade))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &tarnv1.PavVolume{})).
		Watches(&tarnv1.PavStage{}, handler.EnqueueRequestsFromMapFunc(mapStage)).
		Watches(&pavv1.PavProvisioner{}, handler.EnqueueRequestsFromMapFunc(r.mapProvisioner), builder.WithPredicates(kube.ProvisionerJudged())).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.mapClass), builder.WithPredicates(kube.Later())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.mapNode), builder.WithPredicates(newNodes())).
		Complete(r)
}

// Reconcile brings one volume a step further.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	v, err := r.gather(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	for {
		p := plan(v, r.clock.Now())
		more, err := r.apply(ctx, v, p)
		if now := r.clock.Now(); err != nil || !more {
			return kube.Outcome(err, nextLook(v, p, now), now)
		}
	}
}

// claimIndexes are the indexes of claims. All but the index by UID contain only claims that wait
// for a volume.
func claimIndexes() map[string]client.IndexerFunc {
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
		indexClaimClass:       waiting(volume.ClassOf),
		indexClaimSource:      waiting(waitingForSource),
	}
}

func volumeOfStage(o client.Object) []string {
	stage, ok := o.(*tarnv1.PavStage)
	if !ok {
		return nil
	}
	return []string{stage.Spec.VolumeName}
}

func addIndexes(mgr ctrl.Manager) error {
	ctx := context.Background()
	for name, key := range claimIndexes() {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.PersistentVolumeClaim{}, name, key); err != nil {
			return fmt.Errorf("indexing claims: %w", err)
		}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &tarnv1.PavStage{}, indexStageVolume, volumeOfStage); err != nil {
		return fmt.Errorf("indexing stages: %w", err)
	}
	for _, add := range []func(context.Context, ctrl.Manager) error{kube.IndexHandles, kube.IndexHandlesAwaited, kube.IndexClaims} {
		if err := add(ctx, mgr); err != nil {
			return err
		}
	}
	return nil
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

func mapClaim(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(volumeName(o.GetUID()))}
}

func mapStage(_ context.Context, o client.Object) (requests []reconcile.Request) {
	for _, name := range volumeOfStage(o) {
		requests = append(requests, request(name))
	}
	return requests
}

// mapHolder enqueues the records that may wait for the handle of a record or volume.
func (r *reconciler) mapHolder(ctx context.Context, o client.Object) []reconcile.Request {
	return kube.HandleWaiters(ctx, r.client, o)
}

// mapProvisioner enqueues the claims that wait for a provisioner, and its records that are not
// Created.
func (r *reconciler) mapProvisioner(ctx context.Context, o client.Object) []reconcile.Request {
	return append(r.waiting(ctx, client.MatchingFields{indexClaimProvisioner: o.GetName()}), r.records(ctx,
		func(record *tarnv1.PavVolume) bool { return record.Status.Phase != tarnv1.VolumeCreated }, client.MatchingLabels{tarnv1.LabelProvisioner: o.GetName()})...)
}

// mapClass enqueues the claims that wait for a class.
func (r *reconciler) mapClass(ctx context.Context, o client.Object) []reconcile.Request {
	return r.waiting(ctx, client.MatchingFields{indexClaimClass: o.GetName()})
}

// mapNode enqueues the records whose deletion may wait for a node to return, their own or one below.
func (r *reconciler) mapNode(ctx context.Context, o client.Object) []reconcile.Request {
	return r.records(ctx, func(record *tarnv1.PavVolume) bool {
		return destroying(record) && (record.Status.NodeName == o.GetName() || len(record.Status.Claims) > 0)
	})
}

func (r *reconciler) waiting(ctx context.Context, listed client.ListOption) (requests []reconcile.Request) {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := r.client.List(ctx, claims, listed, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing claims")
	}
	for i := range claims.Items {
		requests = append(requests, request(volumeName(claims.Items[i].UID)))
	}
	return requests
}

// records returns requests for those of the listed records.
func (r *reconciler) records(ctx context.Context, those func(*tarnv1.PavVolume) bool, listed ...client.ListOption) (requests []reconcile.Request) {
	records := &tarnv1.PavVolumeList{}
	if err := r.client.List(ctx, records, append(listed, client.UnsafeDisableDeepCopy)...); err != nil {
		log.FromContext(ctx).Error(err, "listing records")
	}
	for i := range records.Items {
		if those(&records.Items[i]) {
			requests = append(requests, request(records.Items[i].Name))
		}
	}
	return requests
}
