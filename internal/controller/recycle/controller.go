package recycle

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
)

// indexClaim is the index of volumes by the claim they point at, as namespace/name.
const indexClaim = "recycle.claim"

// Options are what the controller needs besides the manager.
type Options struct {
	// Namespace is where scrub claims and pods are. Only Tarn may create claims there.
	Namespace string
	// Image is the image of scrub pods: Tarn's own.
	Image string
	// PullSecrets are the names of the Secrets in Namespace with which Image is pulled.
	PullSecrets []string
	// Steps makes the pods of PavProvisioners that recycle their volumes themselves.
	Steps *steppod.Steps
	// OwnBinder means that Tarn's binder runs instead of Kubernetes', which recycles some
	// volumes itself.
	OwnBinder bool
	// Pods is a cache of all pods, from kube.AllPods.
	Pods cache.Cache
	// MaxConcurrent is how many volumes are reconciled at once; 0 means one.
	MaxConcurrent int
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

type reconciler struct {
	client    client.Reader // cached
	reader    client.Reader // live
	runner    action.Runner
	clock     clock.PassiveClock
	namespace string
	image     string
	secrets   []string
	ownBinder bool
	steps     *steppod.Steps
	handles   kube.Handles
	claims    kube.Claims
}

// Register adds the controller to a manager. Requests are names of volumes.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), clock: cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{}),
		runner:    action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName)},
		namespace: o.Namespace, image: o.Image, secrets: o.PullSecrets, ownBinder: o.OwnBinder,
		steps: o.Steps, handles: kube.Handles{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
		claims: kube.Claims{Cached: mgr.GetClient(), Live: mgr.GetAPIReader()},
	}
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.PersistentVolume{}, indexClaim, claimOf)
	if err != nil {
		return fmt.Errorf("indexing volumes by claim: %w", err)
	}
	if err := kube.IndexHandles(context.Background(), mgr); err != nil {
		return err
	}
	if err := kube.IndexClaims(context.Background(), mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("recycle").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&corev1.PersistentVolume{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(mapClaim)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &corev1.PersistentVolume{})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &tarnv1.PavVolume{})).
		Watches(&pavv1.PavProvisioner{}, handler.EnqueueRequestsFromMapFunc(r.mapProvisioner), builder.WithPredicates(kube.ProvisionerJudged())).
		Watches(&storagev1.VolumeAttachment{}, handler.EnqueueRequestsFromMapFunc(mapAttachment)).
		Watches(&tarnv1.PavStage{}, handler.EnqueueRequestsFromMapFunc(mapStage)).
		WatchesRawSource(source.Kind(o.Pods, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(r.mapUser))).
		Complete(r)
}

// Reconcile gathers, plans and applies for one volume. A plan that cannot be undone is made
// again from the API server's state.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, r.client, request.Name)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	p := plan(v, now)
	if p.Grave {
		if v, err = r.gatherLive(ctx, request.Name); err != nil {
			return kube.Outcome(err, time.Time{}, now)
		}
		p = plan(v, now)
	}
	return kube.Outcome(r.apply(ctx, v, p), p.Next, now)
}

// claimOf returns the keys of a volume in the index indexClaim.
func claimOf(o client.Object) []string {
	if vol, ok := o.(*corev1.PersistentVolume); ok && vol.Spec.ClaimRef != nil {
		return []string{vol.Spec.ClaimRef.Namespace + "/" + vol.Spec.ClaimRef.Name}
	}
	return nil
}

func named(name string) []reconcile.Request {
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

func mapClaim(_ context.Context, o client.Object) []reconcile.Request {
	if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
		return named(claim.Spec.VolumeName)
	}
	return nil
}

func mapAttachment(_ context.Context, o client.Object) []reconcile.Request {
	if a, ok := o.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
		return named(*a.Spec.Source.PersistentVolumeName)
	}
	return nil
}

func mapStage(_ context.Context, o client.Object) []reconcile.Request {
	if stage, ok := o.(*tarnv1.PavStage); ok {
		return named(stage.Spec.VolumeName)
	}
	return nil
}

// mapProvisioner enqueues the volumes of a provisioner. It cannot choose those that could not be
// recycled: the cache may show the provisioner before it shows the condition that says so.
func (r *reconciler) mapProvisioner(ctx context.Context, o client.Object) []reconcile.Request {
	records := &tarnv1.PavVolumeList{}
	if err := r.client.List(ctx, records, client.MatchingLabels{tarnv1.LabelProvisioner: o.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the records of a provisioner", "provisioner", o.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range records.Items {
		requests = append(requests, named(records.Items[i].Name)...)
	}
	return requests
}

// mapUser enqueues the volumes of the claims of a pod, because the pod may be the last
// consumer. These are the volumes that point at the claims, and those that the claims name.
func (r *reconciler) mapUser(ctx context.Context, pod *corev1.Pod) []reconcile.Request {
	var requests []reconcile.Request
	if recycled, is := strings.CutPrefix(pod.Name, recyclerPrefix); is {
		requests = named(recycled)
	}
	for _, claim := range volume.ClaimsOfPod(pod) {
		there, err := kube.Get(ctx, r.client, client.ObjectKey{Namespace: pod.Namespace, Name: claim}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			log.FromContext(ctx).Error(err, "reading the claim of a pod", "claim", pod.Namespace+"/"+claim)
			return nil
		}
		if there != nil {
			requests = append(requests, named(there.Spec.VolumeName)...)
		}
		volumes := &corev1.PersistentVolumeList{}
		err = r.client.List(ctx, volumes, client.MatchingFields{indexClaim: pod.Namespace + "/" + claim}, client.UnsafeDisableDeepCopy)
		if err != nil {
			log.FromContext(ctx).Error(err, "listing the volumes of a claim", "claim", pod.Namespace+"/"+claim)
			return nil
		}
		for i := range volumes.Items {
			requests = append(requests, named(volumes.Items[i].Name)...)
		}
	}
	return requests
}
