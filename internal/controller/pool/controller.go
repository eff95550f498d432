package pool

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// DefaultPauseImage is the image of filler pods where none is given. They need not
// start, so it does no harm where it cannot be pulled.
const DefaultPauseImage = "registry.k8s.io/pause:3.10"

// Options are what the controller needs beside the manager.
type Options struct {
	// Namespace is where filler claims and pods are; nobody else may make claims there.
	Namespace string
	// PauseImage is the image of filler pods, DefaultPauseImage where it is empty.
	PauseImage string
	// MaxConcurrent is how many sets are worked on at once; 0 means one.
	MaxConcurrent int
	// Clock is the real one where it is nil.
	Clock clock.PassiveClock
}

type reconciler struct {
	client                client.Client
	reader                client.Reader // live
	events                events.EventRecorder
	clock                 clock.PassiveClock
	namespace, pauseImage string
}

// Register adds the controller to a manager. Its queue holds names of sets.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), events: mgr.GetEventRecorder(kube.ControllerName), clock: o.Clock,
		namespace: o.Namespace, pauseImage: o.PauseImage,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	if r.pauseImage == "" {
		r.pauseImage = DefaultPauseImage
	}
	ofSets := func(concerned func(*tarnv1.PersistentVolumeSet, client.Object) bool) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(r.sets(concerned))
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("pool").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		For(&tarnv1.PersistentVolumeSet{}).
		Watches(&corev1.PersistentVolume{}, ofSets(r.concernsVolume)).
		Watches(&corev1.PersistentVolumeClaim{}, ofSets(concernsFiller), builder.WithPredicates(predicate.NewPredicateFuncs(r.isFiller))).
		Watches(&corev1.Pod{}, ofSets(concernsFiller), builder.WithPredicates(predicate.NewPredicateFuncs(r.isFiller))).
		Watches(&storagev1.StorageClass{}, ofSets(concernsClass)).
		Watches(&tarnv1.PavVolume{}, ofSets(r.concernsRecord), builder.WithPredicates(predicate.NewPredicateFuncs(r.isFillerRecord))).
		Watches(&pavv1.PavProvisioner{}, ofSets(concernsProvisioner), builder.WithPredicates(kube.ProvisionerJudged())).
		Complete(r)
}

// Reconcile gathers, plans and applies. A plan that cannot be taken back is made anew
// from what the API server has. A filler that the API server refuses is part of what
// is known of the set.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	v, err := r.gather(ctx, r.client, request.Name)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	p := plan(v, now)
	if p.grave() {
		if v, err = r.gather(ctx, r.reader, request.Name); err != nil {
			return kube.Outcome(err, time.Time{}, now)
		}
		p = plan(v, now)
	}
	err = r.apply(ctx, v, p)
	if v.Refused = refusal(err); v.Refused != "" {
		err = errors.Join(err, r.apply(ctx, v, Plan{report(v, now)}))
	}
	return kube.Outcome(err, time.Time{}, now)
}

// sets gives the names of the sets that an object concerns.
func (r *reconciler) sets(concerned func(*tarnv1.PersistentVolumeSet, client.Object) bool) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		list := &tarnv1.PersistentVolumeSetList{}
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing PersistentVolumeSets", "changed", o.GetName())
			return nil
		}
		var requests []reconcile.Request
		for i := range list.Items {
			if concerned(&list.Items[i], o) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
			}
		}
		return requests
	}
}

// concernsVolume: it is selected, or the volume of a filler claim.
func (r *reconciler) concernsVolume(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	vol, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return false
	}
	ref := vol.Spec.ClaimRef
	return labels.SelectorFromSet(set.Spec.Selector).Matches(labels.Set(vol.Labels)) ||
		ref != nil && ref.Namespace == r.namespace && strings.HasPrefix(ref.Name, fillerPrefix(set.UID))
}

func (r *reconciler) isFiller(o client.Object) bool {
	return o.GetNamespace() == r.namespace && strings.HasPrefix(o.GetName(), namePrefix)
}

func concernsFiller(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	return strings.HasPrefix(o.GetName(), fillerPrefix(set.UID))
}

func concernsClass(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	return o.GetName() == set.Spec.Template.Spec.StorageClassName || o.GetName() == fillerClassName(set)
}

func (r *reconciler) isFillerRecord(o client.Object) bool {
	record, ok := o.(*tarnv1.PavVolume)
	return ok && record.Spec.Claim.Namespace == r.namespace && record.Status.LastError != nil
}

func (r *reconciler) concernsRecord(set *tarnv1.PersistentVolumeSet, o client.Object) bool {
	record, ok := o.(*tarnv1.PavVolume)
	return ok && strings.HasPrefix(record.Spec.Claim.Name, fillerPrefix(set.UID))
}

// concernsProvisioner: any may be that of a set's class.
func concernsProvisioner(*tarnv1.PersistentVolumeSet, client.Object) bool { return true }
