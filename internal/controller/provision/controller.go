package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch;create
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,verbs=list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes/status,verbs=update
// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	indexClaimUID         = "provision.uid"
	indexClaimProvisioner = "provision.provisioner"
	indexClaimClass       = "provision.class"
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
	client  client.Client
	reader  client.Reader // live
	handles kube.Handles
	steps   *steppod.Steps
	events  events.EventRecorder
	clock   clock.PassiveClock
}

// Register adds the controller to a manager. Its queue holds names of volumes: pvc-<UID of the
// claim>.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), steps: o.Steps,
		handles: kube.Handles{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		events:  mgr.GetEventRecorder(kube.ControllerName), clock: o.Clock,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	if err := addIndexes(mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("provision").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&tarnv1.PavVolume{}).
		Watches(&tarnv1.PavVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapHolder)).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapHolder)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapClaim), builder.WithPredicates(namesProvisioner)).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(mapVolume)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &tarnv1.PavVolume{})).
		Watches(&pavv1.PavProvisioner{}, handler.EnqueueRequestsFromMapFunc(r.mapProvisioner), builder.WithPredicates(kube.ProvisionerJudged())).
		Watches(storageClass(), handler.EnqueueRequestsFromMapFunc(r.mapClass), builder.WithPredicates(kube.Later())).
		Complete(r)
}

// Reconcile brings one volume a step further.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	v, err := r.gather(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	for {
		plan := decide(v, r.clock.Now())
		more, err := r.apply(ctx, v, plan)
		if err != nil || !more {
			return kube.Outcome(err, nextLook(v, plan, r.clock.Now()), r.clock.Now())
		}
	}
}
