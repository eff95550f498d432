package autogrow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/kubelet"
	"tarn.dev/tarn/internal/volume"
)

// defaultPeriod is the time between two questions to a kubelet. Kubelets measure every one to two
// minutes.
const defaultPeriod = time.Minute

// Kubelets asks kubelets. *kubelet.Kubelets is one.
type Kubelets interface {
	Node(ctx context.Context, node *corev1.Node) (map[client.ObjectKey]kubelet.Usage, error)
}

// Options are what the controller needs besides the manager.
type Options struct {
	// Namespace is Tarn's own. The controller ignores claims in it: spare volumes and scrub claims.
	Namespace string
	// Pods is kube.AllPods.
	Pods cache.Cache
	// Kubelets answer how full volumes are.
	Kubelets Kubelets
	// MaxConcurrent is how many kubelets are asked at once; 0 means one.
	MaxConcurrent int
	// Period is the time between two questions to a kubelet; 0 means a minute.
	Period time.Duration
	// Clock is the time source; nil means the real clock.
	Clock clock.PassiveClock
}

type reconciler struct {
	client    client.Reader // cached
	pods      client.Reader
	kubelets  Kubelets
	runner    action.Runner
	clock     clock.PassiveClock
	namespace string
	period    time.Duration
	steps     *prometheus.CounterVec

	mu    sync.Mutex
	nodes map[string]*node
	// told is the last complaint about each claim, of whatever node. A pod that is created again, or
	// runs on another node, does not make it news.
	told map[types.UID]string
}

// node is what is remembered of a node with annotated claims. Only the reconcile of the node reads
// and writes it.
type node struct {
	// asked is when its kubelet was last asked, zero for never.
	asked time.Time
	// failures is how many questions in a row had no answer, and unanswered why the last had none.
	failures   int
	unanswered string
	// usage is the newest answer, of the annotated claims alone.
	usage map[client.ObjectKey]kubelet.Usage
	// claims is what plan remembers.
	claims map[types.UID]Memory
}

// podsByNode is the index of pods by the name of their node.
const podsByNode = "spec.nodeName"

// Register adds the controller to a manager. Requests are names of nodes.
func Register(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		client: mgr.GetClient(), pods: o.Pods, kubelets: o.Kubelets,
		runner: action.Runner{Client: mgr.GetClient(), Events: mgr.GetEventRecorder(kube.ControllerName)},
		clock:  o.Clock, namespace: o.Namespace, period: o.Period, nodes: map[string]*node{}, told: map[types.UID]string{},
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	if r.period == 0 {
		r.period = defaultPeriod
	}
	var err error
	if r.steps, err = countSteps(metrics.Registry); err != nil {
		return err
	}
	err = o.Pods.IndexField(context.Background(), &corev1.Pod{}, podsByNode, func(o client.Object) []string {
		if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" && len(volume.ClaimsOfPod(pod)) > 0 {
			return []string{pod.Spec.NodeName}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing all pods by their nodes: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("autogrow").
		WithOptions(controller.Options{MaxConcurrentReconciles: o.MaxConcurrent, RateLimiter: kube.RateLimiter()}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.mapClaim)).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.mapClass), builder.WithPredicates(kube.Later())).
		WatchesRawSource(source.Kind(o.Pods, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(r.mapPod), placed())).
		Complete(r)
}

// countSteps registers the metric, or reuses that of an earlier controller of this process.
func countSteps(with prometheus.Registerer) (*prometheus.CounterVec, error) {
	steps := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tarn_autogrow_steps_total", Help: "Steps by which claims grew or could not grow by themselves, by class.",
	}, []string{"class", "outcome"})
	err := with.Register(steps)
	var known prometheus.AlreadyRegisteredError
	if errors.As(err, &known) {
		if before, ok := known.ExistingCollector.(*prometheus.CounterVec); ok {
			return before, nil
		}
	}
	return steps, err
}

// Reconcile gathers for one node, then plans and applies for each claim that its pods use.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	n := r.node(request.Name)
	views, next, err := r.gather(ctx, request.Name, n, now)
	if err != nil {
		return kube.Outcome(err, time.Time{}, now)
	}
	if len(views) == 0 {
		r.forget(request.Name)
		return kube.Outcome(nil, next, now)
	}
	var failed []error
	claims := make(map[types.UID]Memory, len(views))
	for i := range views {
		v := &views[i]
		p := r.news(v, plan(v, now))
		err := r.runner.Do(ctx, p.Actions...)
		if p.Outcome == grown && kube.IsRefusal(err) {
			p = r.news(v, planRejected(v, err, now))
			err = r.runner.Do(ctx, p.Actions...)
		}
		claims[v.Claim.UID] = p.Memory
		switch {
		case err != nil:
			failed = append(failed, err)
			claims[v.Claim.UID] = v.Memory // what was not said is said the next time
		case p.Outcome != "":
			r.steps.WithLabelValues(volume.ClassOf(v.Claim), p.Outcome).Inc()
		}
	}
	n.claims = claims
	return kube.Outcome(errors.Join(failed...), next, now)
}

func (r *reconciler) node(name string) *node {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[name] == nil {
		r.nodes[name] = &node{}
	}
	return r.nodes[name]
}

// remembered is what the plan before remembered of a claim. To a node that is new to the claim, the
// last complaint is known already.
func (r *reconciler) remembered(n *node, claim types.UID) Memory {
	memory, known := n.claims[claim]
	if !known {
		r.mu.Lock()
		defer r.mu.Unlock()
		memory.Told = r.told[claim]
	}
	return memory
}

// news takes from a plan the complaint that the plan of another node has made already.
func (r *reconciler) news(v *View, p Plan) Plan {
	r.mu.Lock()
	defer r.mu.Unlock()
	told, claim := p.Memory.Told, v.Claim.UID
	switch {
	case told == v.Memory.Told:
	case told == "":
		delete(r.told, claim)
	case told == r.told[claim]:
		if p.Actions = nil; p.Outcome == limited {
			p.Outcome = ""
		}
	default:
		r.told[claim] = told
	}
	return p
}

// forgetClaim forgets the complaint about a claim that is gone or has no setting.
func (r *reconciler) forgetClaim(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, claim)
}

func (r *reconciler) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
}
