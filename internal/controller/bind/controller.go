package bind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tarn.dev/tarn/internal/kube"
)

// defaultWorkers is how many claims, and how many volumes, are reconciled at once. A worker mostly
// waits for the API server. More writes at once cost the API server less, and etcd too, which syncs
// them to disk together (docs/design/0015). It is half of the requests that an API server with
// default flags serves at once for service accounts.
const defaultWorkers = 128

// manyClaims is the number of claims in work or in the queue above which the API server counts as
// overloaded. Otherwise there are few at any moment, as each takes milliseconds.
const manyClaims = 16

// rounds is how often in a row a worker decides again after a conflict. Then it leaves the retry to
// the queue.
const rounds = 5

// writeTimeout is how long a write waits for its answer. After it the binder reads the object
// again, and no other claim may use the volume until then.
const writeTimeout = 30 * time.Second

// Options are what the controller needs besides the manager.
type Options struct {
	// Pods is a cache of all pods with index kube.PodsByClaim. Without it, Events do not name the
	// pods that wait.
	Pods ctrlcache.Cache
	// MaxConcurrent is how many claims, and how many volumes, are reconciled at once; 0 means 128.
	MaxConcurrent int
	// NoProvisioning disables the calls of provisioners.
	NoProvisioning bool
	// ticks lets tests trigger the resync.
	ticks <-chan time.Time
}

// reconciler is what the two controllers share.
type reconciler struct {
	*watches
	// api writes, and reads live, without a client-side rate limit: the API server's priority and
	// fairness knows better how much load it can take.
	api     v1.CoreV1Interface
	classes storagev1.StorageClassInterface
	events  *eventQueue
	metrics *metrics
	clock   clock.PassiveClock
	log     logr.Logger
	// active is how many claims are being reconciled.
	active atomic.Int32
	// crowdedAt is when there were last many claims in work or queued, nil for never.
	crowdedAt atomic.Pointer[time.Time]
	// warnedAt is when the log last warned of another binder. The cache's lock guards it.
	warnedAt time.Time
}

type (
	claims  struct{ *reconciler }
	volumes struct{ *reconciler }
)

// Register adds two controllers to a manager, one for claims and one for volumes.
func Register(mgr ctrl.Manager, o Options) error {
	config := rest.CopyConfig(mgr.GetConfig())
	config.QPS, config.Burst, config.Timeout = -1, -1, writeTimeout
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	api, err := v1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the binder's client: %w", err)
	}
	storage, err := storagev1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the binder's client of classes: %w", err)
	}
	metrics, err := newMetrics(ctrlmetrics.Registry)
	if err != nil {
		return fmt.Errorf("registering the binder's metrics: %w", err)
	}
	r := &reconciler{api: api, classes: storage.StorageClasses(), metrics: metrics, clock: clock.RealClock{}, log: mgr.GetLogger().WithName("bind")}
	r.watches = &watches{informers: mgr.GetCache(), pods: o.Pods, cache: newCache(o.NoProvisioning, r), ticks: o.ticks, ready: make(chan struct{})}
	r.events = newEventQueue(mgr.GetEventRecorder(kube.ControllerName), r.clock, r.cache.settled)
	r.events.busy = r.busy
	if err := mgr.Add(r.events); err != nil {
		return fmt.Errorf("adding the event recorder of the binder: %w", err)
	}
	if err := checkVersion(mgr, config, r.log); err != nil {
		return err
	}
	workers := o.MaxConcurrent
	if workers == 0 {
		workers = defaultWorkers
	}
	for _, c := range []struct {
		name string
		feed feed
		do   reconcile.Reconciler
	}{{"bind-claims", r.claimFeed(), claims{r}}, {"bind-volumes", r.volumeFeed(), volumes{r}}} {
		err := ctrl.NewControllerManagedBy(mgr).
			Named(c.name).
			WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: kube.RateLimiter()}).
			WatchesRawSource(c.feed).
			Complete(c.do)
		if err != nil {
			return err
		}
	}
	return nil
}

// busy says whether work that can wait should wait for the claims. An overloaded API
// server stops for moments. Few claims are in work after such a stop, and many are about to come.
// So it stays true until there were few claims for claimPause.
func (r *reconciler) busy() bool {
	now := r.clock.Now()
	if int(r.active.Load())+r.claims.Len() > manyClaims {
		at := now // only this copy escapes to the heap
		r.crowdedAt.Store(&at)
		return true
	}
	last := r.crowdedAt.Load()
	return last != nil && now.Sub(*last) < claimWait
}

// Reconcile brings one claim to its desired state.
func (r claims) Reconcile(ctx context.Context, request reconcile.Request) (_ reconcile.Result, err error) {
	key := request.NamespacedName
	r.active.Add(1)
	defer r.active.Add(-1)
	defer func() { r.enqueue(r.cache.finishClaim(key, err)) }()
	var began match
	for range rounds {
		var again bool
		if again, err = r.once(ctx, key, &began); !again {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, err
}

// match is a volume and how it was found for a claim.
type match struct {
	volume string
	how    Match
}

// as returns how a volume was first found for a claim. After a conflict halfway through joining the
// two, the volume points at the claim in any case, which says nothing.
func (m *match) as(volume string, how Match) Match {
	if volume != m.volume {
		*m = match{volume: volume, how: how}
	}
	return m.how
}

// once decides about a claim and applies the plan. The caller passes the same began for all rounds.
// again says that the caller must decide once more.
func (r claims) once(ctx context.Context, key claimKey, began *match) (again bool, err error) {
	v, err := r.gatherClaim(ctx, key)
	if err != nil || v == nil {
		return false, r.failed(err, "claim", key, nil)
	}
	on := pair{claim: v.Claim, volume: v.volume()}
	p := planClaim(v)
	if on.volume != nil {
		defer func() { r.unlockVolume(on.volume.Name, err) }()
		if p.Match != MatchNone {
			p.Match = began.as(on.volume.Name, p.Match)
		}
	}
	switch err = r.failed(r.apply(ctx, on, p), "claim", key, on.volume); {
	case err == nil && p.Match != MatchNone:
		r.metrics.observeBound(v.Claim, p.Match, r.clock.Now())
	case isRejected(err) && !apierrors.IsTooManyRequests(err):
		r.events.post(on, rejectedEvent(&p, err))
	}
	return isStale(err) || err == nil && p.Again, err
}

// rejectedEvent is the Event that tells the user that the API server, usually through a webhook, rejects
// a write of the claim. The binder retries with backoff.
func rejectedEvent(p *Plan, err error) Post {
	return Post{On: OnClaim, Type: corev1.EventTypeWarning, Reason: cmp.Or(p.RejectedReason, reasonFailedBinding), Note: kube.RefusedWrite + err.Error()}
}

// Reconcile brings one volume to its desired state.
func (r volumes) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	// While many claims are in work, this volume's claim may be among them. A needless write would
	// make all of them wait longer.
	if r.busy() && r.cache.expectsClaim(request.Name, r.clock.Now().Add(-maxClaimWait)) {
		return reconcile.Result{RequeueAfter: claimWait}, nil
	}
	var err error
	for range rounds {
		if err = r.once(ctx, request.Name); !isStale(err) {
			break
		}
	}
	return reconcile.Result{}, err
}

func (r volumes) once(ctx context.Context, name string) (err error) {
	v, err := r.gatherVolume(ctx, name)
	if err != nil || v == nil {
		return r.failed(err, "volume", claimKey{}, nil)
	}
	defer func() { r.unlockVolume(name, err) }()
	on := pair{volume: v.Volume, claim: v.Claim}
	return r.failed(r.apply(ctx, on, planVolume(v)), "volume", claimKey{}, v.Volume)
}

// failed counts a reconcile that ended in an error. After a failed write it marks the objects as as
// uncertain, unless the API server surely rejected the write. They are read again before the next
// decision.
func (r *reconciler) failed(err error, object string, key claimKey, v *corev1.PersistentVolume) error {
	if err != nil {
		r.metrics.failed(object, err)
	}
	if write := (*writeError)(nil); errors.As(err, &write) && !isRejected(err) {
		name := ""
		if v != nil {
			name = v.Name
		}
		r.cache.markUncertain(key, name)
	}
	return err
}

// unlockVolume unlocks a volume and enqueues the claims and volumes that this concerns.
func (r *reconciler) unlockVolume(volume string, err error) {
	r.enqueue(r.cache.unlockVolume(volume, err))
}
