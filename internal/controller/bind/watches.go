package bind

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"tarn.dev/tarn/internal/volume"
)

// resync is how often every object is checked without an event. It is a safety net: nothing is
// known to need it.
const resyncPeriod = 10 * time.Minute

// claimPause is how long a new volume waits for the claim it is reserved for before it becomes
// Available. It waits again while many claims are in work, until it is as old as mostPauses. That
// limit exists because claims that always fail stay in work for ever.
const (
	claimWait    = time.Second
	maxClaimWait = time.Minute
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// watches store what the API server delivers in the cache and enqueue what it concerns. Both
// controllers start only when the cache is complete.
type watches struct {
	informers ctrlcache.Cache
	pods      ctrlcache.Cache
	cache     *cache
	// ticks triggers the resyncs; nil means one every resync.
	ticks <-chan time.Time

	mu      sync.Mutex
	claims  queue
	volumes queue
	synced  []toolscache.InformerSynced
	ready   chan struct{} // closed when the watches are set up
	err     error         // why the setup failed
}

// feed is the event source of one of the two controllers.
type feed struct {
	*watches
	into func(*watches, queue)
}

var _ source.SyncingSource = feed{}

// claimFeed and volumeFeed are the event sources of the controllers.
func (w *watches) claimFeed() feed {
	return feed{w, func(w *watches, q queue) { w.claims = q }}
}

func (w *watches) volumeFeed() feed {
	return feed{w, func(w *watches, q queue) { w.volumes = q }}
}

func (f feed) String() string { return "claims, volumes and classes" }

// Start sets up the watches once both queues exist.
func (f feed) Start(ctx context.Context, q queue) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.into(f.watches, q)
	if f.claims == nil || f.volumes == nil {
		return nil
	}
	f.err = f.begin(ctx)
	close(f.ready)
	return f.err
}

// WaitForSync waits until all objects that existed at the start are in the cache.
func (f feed) WaitForSync(ctx context.Context) error {
	select {
	case <-f.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.err != nil {
		return f.err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), f.synced...) {
		return ctx.Err()
	}
	return nil
}

func (w *watches) begin(ctx context.Context) error {
	handlers := []struct {
		from   ctrlcache.Cache
		object client.Object
		handle toolscache.ResourceEventHandler
	}{
		{w.informers, &storagev1.StorageClass{}, handler(w, (*cache).classChanged, (*cache).classDeleted)},
		{w.informers, &corev1.PersistentVolume{}, handler(w, (*cache).volumeChanged, (*cache).volumeDeleted)},
		{w.informers, &corev1.PersistentVolumeClaim{}, handler(w, (*cache).claimChanged, (*cache).claimDeleted)},
		{w.pods, &corev1.Pod{}, handler(w, (*cache).podChanged, (*cache).podChanged)},
	}
	for _, h := range handlers {
		if h.from == nil {
			continue // without a pod cache, Events do not name pods; nothing else needs it
		}
		informer, err := h.from.GetInformer(ctx, h.object, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		registration, err := informer.AddEventHandler(h.handle)
		if err != nil {
			return err
		}
		w.synced = append(w.synced, registration.HasSynced)
	}
	go w.resyncs(ctx)
	return nil
}

// resyncs checks every object now and at each tick, until ctx ends.
func (w *watches) resyncs(ctx context.Context) {
	ticks := w.ticks
	if ticks == nil {
		ticker := time.NewTicker(resyncPeriod)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		w.enqueue(w.cache.allUnsettled())
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
	}
}

// handler stores objects of one kind in the cache.
func handler[T client.Object](w *watches, saw, lost func(*cache, T) requests) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { deliver(w, o, saw) },
		UpdateFunc: func(_, o any) { deliver(w, o, saw) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			deliver(w, o, lost)
		},
	}
}

func deliver[T client.Object](w *watches, o any, enter func(*cache, T) requests) {
	if object, ok := o.(T); ok {
		w.enqueue(enter(w.cache, object))
	}
}

// wake adds claims and volumes to the queues.
func (w *watches) enqueue(q requests) {
	for key := range q.claims {
		w.claims.Add(reconcile.Request{NamespacedName: key})
	}
	for name := range q.volumes {
		w.volumes.Add(reconcile.Request{NamespacedName: claimKey{Name: name}})
	}
	for name := range q.later {
		w.volumes.AddAfter(reconcile.Request{NamespacedName: claimKey{Name: name}}, claimWait)
	}
}

func (c *cache) claimChanged(claim *corev1.PersistentVolumeClaim) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(claim)
	had := c.claims[key]
	c.noticeForeign(claimWrite(had, claim))
	news := c.putClaim(claim, true)
	c.listener.claimSeen(c.claims[key]) // the cached one: a late watch may show a claim that was not bound yet
	return c.afterClaim(had, claim, news)
}

func (c *cache) claimDeleted(claim *corev1.PersistentVolumeClaim) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	uncertain := c.uncertainClaims[keyOf(claim)]
	q := c.afterClaim(claim, nil, c.dropClaim(claim))
	if c.uncertainVolumes[uncertain] {
		c.enqueueVolume(&q, uncertain) // no reconcile of the claim will read it again
	}
	return q
}

// afterClaim returns what to enqueue after a claim changed: the claim, the volumes that point at
// it, and those it names or named.
func (c *cache) afterClaim(had, claim *corev1.PersistentVolumeClaim, news bool) requests {
	var q requests
	if !news {
		return q
	}
	for _, version := range []*corev1.PersistentVolumeClaim{had, claim} {
		if version == nil {
			continue
		}
		for name := range c.byClaimRef[keyOf(version)] {
			c.enqueueVolume(&q, name)
		}
		if version.Spec.VolumeName != "" {
			c.enqueueVolume(&q, version.Spec.VolumeName)
		}
	}
	if claim != nil {
		c.enqueueClaim(&q, keyOf(claim))
	} else {
		c.passOffer(&q, keyOf(had))
	}
	c.offerNewlyFree(&q)
	return q
}

func (c *cache) volumeChanged(v *corev1.PersistentVolume) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := c.volumes[v.Name]
	c.noticeForeign(volumeWrite(had, v))
	c.listener.volumeSeen(v)
	return c.afterVolume(had, v, c.putVolume(v, true))
}

func (c *cache) volumeDeleted(v *corev1.PersistentVolume) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.afterVolume(v, nil, c.dropVolume(v))
}

// afterVolume returns what to enqueue after a volume changed: the volume, and the claims it points
// or pointed at or that name it. If it is free, it also returns a claim that it may serve.
func (c *cache) afterVolume(had, v *corev1.PersistentVolume, news bool) requests {
	var q requests
	if !news {
		return q
	}
	name := ""
	for _, vol := range []*corev1.PersistentVolume{had, v} {
		if vol == nil {
			continue
		}
		name = vol.Name
		if key, ok := refKey(vol); ok {
			c.enqueueClaim(&q, key)
		}
	}
	for key := range c.byVolumeName[name] {
		c.enqueueClaim(&q, key)
	}
	c.enqueueVolume(&q, name)
	c.offerNewlyFree(&q)
	return q
}

// classChanged stores a class and enqueues the claims that seek a volume of it. If the default class
// changed, it also enqueues the claims that set no class.
func (c *cache) classChanged(class *storagev1.StorageClass) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.defaultClass()
	c.putClass(class)
	return c.afterClass(class.Name, before)
}

func (c *cache) classDeleted(class *storagev1.StorageClass) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.defaultClass()
	c.dropClass(class)
	return c.afterClass(class.Name, before)
}

func (c *cache) afterClass(name string, before *storagev1.StorageClass) requests {
	var q requests
	for key := range c.unbound[name] {
		q.claim(key)
	}
	if now := c.defaultClass(); now != nil && (before == nil || before.Name != now.Name) {
		for key := range c.withoutClass {
			q.claim(key)
		}
	}
	return q
}

// podChanged enqueues the pod's claims that wait for a pod to be scheduled, as the text of their Events
// may change.
func (c *cache) podChanged(pod *corev1.Pod) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	var q requests
	for _, name := range volume.ClaimsOfPod(pod) {
		key := claimKey{Namespace: pod.Namespace, Name: name}
		claim := c.claims[key]
		if claim == nil || volume.StateOfClaim(claim) != volume.ClaimUnbound {
			continue
		}
		if waits, err := volume.WaitsForConsumer(c.classes[volume.ClassOf(claim)]); err == nil && waits {
			q.claim(key)
		}
	}
	return q
}

// allUnsettled returns all claims and volumes that are not settled.
func (c *cache) allUnsettled() requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	var q requests
	for key := range c.claims {
		c.enqueueClaim(&q, key)
	}
	for name := range c.volumes {
		c.enqueueVolume(&q, name)
	}
	return q
}
