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
	"tarn.dev/tarn/internal/action"
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

// steps is the part of steppod.Steps that evaluates sections.
type steps interface {
	PrepareStatic(ctx context.Context, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (*steppod.Prepared, error)
	PrepareStage(ctx context.Context, step tarnv1.Step, p *pavv1.PavProvisioner, stage *tarnv1.PavStage, vol *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, node *corev1.Node, attempt int32) (*steppod.Prepared, error)
	PrepareNodeExpansion(ctx context.Context, p *pavv1.PavProvisioner, e steppod.NodeExpansion) (*steppod.Prepared, error)
	Unmounted(ctx context.Context, pod *corev1.Pod, o steppod.Observation, now time.Time) (steppod.Observation, error)
}

// Reconciler reconciles PavStages.
type Reconciler struct {
	client  client.Client
	live    client.Reader
	steps   steps
	runner  action.Runner
	clock   clock.PassiveClock
	handles kube.Handles
	// pods are all pods of the cluster, trimmed; nil if no stage begins ahead.
	pods client.Reader
}

// newReconciler gives a Reconciler that writes with the client.
func newReconciler(c client.Client, live client.Reader, s *steppod.Steps, recorder events.EventRecorder, now clock.PassiveClock) *Reconciler {
	r := &Reconciler{client: c, live: live, steps: s, clock: now, handles: kube.Handles{Cached: c, Live: live}}
	r.runner = action.Runner{Client: c, Events: recorder, Steps: s, Own: r.own}
	return r
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
	r := newReconciler(mgr.GetClient(), mgr.GetAPIReader(), o.Steps, mgr.GetEventRecorder(kube.ControllerName), o.Clock)
	volumeOfStage := func(o client.Object) string { return o.(*tarnv1.PavStage).Spec.VolumeName }
	volumeOfClaim := func(o client.Object) string { return o.(*corev1.PersistentVolumeClaim).Spec.VolumeName }
	made := ctrl.NewControllerManagedBy(mgr).
		Named("stage").
		For(&tarnv1.PavStage{}).
		Watches(&tarnv1.PavStage{}, r.enqueue(byVolume, volumeOfStage), builder.WithPredicates(awaitedNoMore())).
		Owns(&corev1.Pod{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(gone())).
		Watches(&pavv1.PavProvisioner{}, r.enqueue(byProvisioner, client.Object.GetName), builder.WithPredicates(judged())).
		Watches(&corev1.PersistentVolumeClaim{}, r.enqueue(byVolume, volumeOfClaim), builder.WithPredicates(doomed())).
		Watches(&corev1.Node{}, r.enqueue(byNode, client.Object.GetName), builder.WithPredicates(predicate.Or(gone(), relieved()))).
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()})
	if o.Pods != nil {
		r.pods = o.Pods
		if err := r.registerAhead(mgr, o.Pods, o.MaxConcurrent); err != nil {
			return err
		}
		ofConsumer := r.enqueue(byConsumer, func(o client.Object) string { return string(o.GetUID()) })
		made = made.WatchesRawSource(source.Kind[client.Object](o.Pods, &corev1.Pod{}, ofConsumer, podEnding()))
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
	err = r.runner.Do(ctx, p.Actions...)
	if refused := steppod.AsStepError(err); refused != nil {
		view.Refused = refused
		p = plan(view, now)
		err = r.runner.Do(ctx, p.Actions...)
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

// updates passes the updates that matter, and no other events.
func updates[O client.Object](matters func(old, current O) bool) predicate.Funcs {
	p := predicate.NewPredicateFuncs(func(client.Object) bool { return false })
	p.UpdateFunc = func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(O)
		current, ok2 := e.ObjectNew.(O)
		return ok && ok2 && matters(old, current)
	}
	return p
}

// orGone also passes the end of an object that concerns the stages.
func orGone(p predicate.Funcs, concerns func(client.Object) bool) predicate.Funcs {
	p.DeleteFunc = func(e event.DeleteEvent) bool { return concerns(e.Object) }
	return p
}

func always(client.Object) bool { return true }

// gone passes only the end of an object.
func gone() predicate.Funcs {
	return orGone(updates(func(_, _ client.Object) bool { return false }), always)
}

// judged passes those events of a provisioner that a stage may wait for before it begins.
func judged() predicate.Funcs {
	return orGone(updates(func(old, current *pavv1.PavProvisioner) bool { return acceptance(old) != acceptance(current) }), always)
}

func acceptance(p *pavv1.PavProvisioner) string {
	if c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted); c != nil {
		return string(c.Status)
	}
	return ""
}

// relieved passes the event that a node is no longer under pressure. Staging pods that the node
// rejected may then start again.
func relieved() predicate.Funcs {
	return updates(func(old, current *corev1.Node) bool { return relief(current).After(relief(old)) })
}

// doomed passes the event that the deletion of an object was requested.
func doomed() predicate.Funcs {
	return updates(func(old, current client.Object) bool {
		return old.GetDeletionTimestamp() == nil && current.GetDeletionTimestamp() != nil
	})
}

// podEnding passes the event that a pod is gone or is ending.
func podEnding() predicate.Funcs {
	return orGone(updates(func(old, current *corev1.Pod) bool {
		return ends(current) || old.UID != current.UID // the new pod may be the successor of the old one
	}), always)
}

// awaitedNoMore passes the event that a stage begun ahead is gone, or that the kubelet has
// asked for it. Stages on other nodes may wait for that.
func awaitedNoMore() predicate.Funcs {
	awaited := func(o client.Object) bool {
		stage, ok := o.(*tarnv1.PavStage)
		return ok && stage.Awaited()
	}
	return orGone(updates(func(old, current client.Object) bool { return awaited(old) && !awaited(current) }), awaited)
}
