// Package stage runs the pods of a PavStage: the staging pod while the stage is wanted, the
// unstaging pod once its node has unmounted the volume. It is the stage controller's side of
// the protocol described on type PavStage.
//
// It knows nothing of mounts, targets and /pav. Those belong to the node agent, and the two
// meet only in the PavStage.
package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// defaultConcurrent is how many stages are reconciled at once by default. It is high enough
// that a template with a slow get_pvc does not delay other stages.
const defaultConcurrent = 8

// Names of this controller's indexes of PavStage. They begin with its name, because two
// controllers of one manager cannot add the same index.
const (
	byProvisioner = "stage.provisioner"
	byNode        = "stage.node"
	byVolume      = "stage.volume"
	byConsumer    = "stage.consumer" // UID of the pod for which a stage was begun ahead
)

// Options of the controller.
type Options struct {
	// Steps evaluates sections and makes their pods.
	Steps *steppod.Steps
	// Pods is a cache of all pods, kube.AllPods. If it is nil, no stage begins ahead.
	Pods cache.Cache
	// MaxConcurrent is how many stages are reconciled at once; 0 means 8.
	MaxConcurrent int
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

// steps is the part of steppod.Steps that the controller uses.
type steps interface {
	PrepareStatic(ctx context.Context, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (*steppod.Prepared, error)
	PrepareStage(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, node *corev1.Node, attempt int32) (*steppod.Prepared, error)
	Unmounted(ctx context.Context, pod *corev1.Pod, o steppod.Observation, now time.Time) (steppod.Observation, error)
	Start(ctx context.Context, pod *corev1.Pod) error
	Discard(ctx context.Context, pod *corev1.Pod) error
}

// Reconciler reconciles PavStages.
type Reconciler struct {
	client client.Client
	live   client.Reader
	steps  steps
	events events.EventRecorder
	clock  clock.PassiveClock

	handles kube.Handles

	// pods are all pods of the cluster, trimmed; nil if no stage begins ahead.
	pods client.Reader

	expander expander
}

// Register adds the controller and its indexes to a manager.
func Register(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.MaxConcurrent == 0 {
		o.MaxConcurrent = defaultConcurrent
	}
	for field, values := range indexes() {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &tarnv1.PavStage{}, field, values); err != nil {
			return fmt.Errorf("adding index %s of PavStage: %w", field, err)
		}
	}
	if err := kube.IndexHandles(context.Background(), mgr); err != nil {
		return err
	}
	r := &Reconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), steps: o.Steps, events: mgr.GetEventRecorder(kube.ControllerName), clock: o.Clock, expander: o.Steps}
	r.handles = kube.Handles{Cached: r.client, Live: r.live}
	made := ctrl.NewControllerManagedBy(mgr).
		Named("stage").
		For(&tarnv1.PavStage{}).
		Watches(&tarnv1.PavStage{}, r.siblings(), builder.WithPredicates(awaitedNoMore())).
		Owns(&corev1.Pod{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(gone())).
		Watches(&pavv1.PavProvisioner{}, r.stagesWith(byProvisioner), builder.WithPredicates(judged())).
		Watches(&corev1.PersistentVolumeClaim{}, r.stagesOfClaim(), builder.WithPredicates(doomed())).
		Watches(&corev1.Node{}, r.stagesWith(byNode), builder.WithPredicates(predicate.Or(gone(), relieved()))).
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()})
	if o.Pods != nil {
		r.pods = o.Pods
		if err := r.registerAhead(mgr, o.Pods, o.MaxConcurrent); err != nil {
			return err
		}
		made = made.WatchesRawSource(source.Kind[client.Object](o.Pods, &corev1.Pod{}, r.stagesFor(), podEnding()))
	}
	return made.Complete(r)
}

// Reconcile gathers, plans and applies for one stage. If the API server rejects a pod, that
// becomes part of the view and Reconcile plans once more.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	view, err := r.gather(ctx, req.Name, now)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	if left, lookAt, err := r.stopExpansion(ctx, view, now); left || err != nil {
		return kube.Outcome(client.IgnoreNotFound(err), lookAt, now)
	}
	p := plan(view, now)
	err = r.apply(ctx, view, p)
	if refused := steppod.AsStepError(err); refused != nil {
		view.Refused = refused
		p = plan(view, now)
		err = r.apply(ctx, view, p)
	}
	p.LookAt = kube.Sooner(p.LookAt, kube.Sooner(lookAhead(view.Stage, now), lookDrop(view.Stage, now)))
	if err == nil {
		grow, notGrown := r.expand(ctx, view, now)
		evict, notEvicted := r.restart(ctx, view, now) // last, because the API server may take long to answer
		p.LookAt, err = kube.Sooner(p.LookAt, kube.Sooner(grow, evict)), errors.Join(notGrown, notEvicted)
	}
	// NotFound means that the stage was deleted while the cache still showed it.
	return kube.Outcome(client.IgnoreNotFound(err), p.LookAt, now)
}

func indexes() map[string]client.IndexerFunc {
	of := func(value func(*tarnv1.PavStage) string) client.IndexerFunc {
		return func(o client.Object) []string { return []string{value(o.(*tarnv1.PavStage))} }
	}
	return map[string]client.IndexerFunc{
		byProvisioner: of(func(s *tarnv1.PavStage) string { return s.Spec.Provisioner.Name }),
		byNode:        of(func(s *tarnv1.PavStage) string { return s.Spec.NodeName }),
		byVolume:      of(func(s *tarnv1.PavStage) string { return s.Spec.VolumeName }),
		byConsumer:    of(consumerOf),
	}
}

// stagesWith enqueues the stages that the index lists under an object's name.
func (r *Reconciler) stagesWith(index string) handler.EventHandler {
	return r.enqueue(index, client.Object.GetName)
}

// enqueue enqueues the stages that the index lists under the key of an object.
func (r *Reconciler) enqueue(index string, key func(client.Object) string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var stages tarnv1.PavStageList
		if err := r.client.List(ctx, &stages, client.MatchingFields{index: key(o)}, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "stages cannot be listed, so they miss an event", "index", index, "name", o.GetName())
			return nil
		}
		var requests []reconcile.Request
		for i := range stages.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: stages.Items[i].Name}})
		}
		return requests
	})
}

// judged passes those events of a provisioner that a stage may wait for before it begins.
func judged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, ok := e.ObjectOld.(*pavv1.PavProvisioner)
			current, ok2 := e.ObjectNew.(*pavv1.PavProvisioner)
			return ok && ok2 && acceptance(old) != acceptance(current)
		},
		CreateFunc:  func(event.CreateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

func acceptance(p *pavv1.PavProvisioner) string {
	if c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted); c != nil {
		return string(c.Status)
	}
	return ""
}

// gone passes only the end of an object.
func gone() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// relieved passes the event that a node is no longer under pressure. Staging pods that the node
// rejected may then start again.
func relieved() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, ok := e.ObjectOld.(*corev1.Node)
			current, ok2 := e.ObjectNew.(*corev1.Node)
			return ok && ok2 && relief(current).After(relief(old))
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
