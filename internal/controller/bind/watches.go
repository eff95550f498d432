package bind

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"tarn.dev/tarn/internal/volume"
)

// resync is how often every object is checked without an event. It is a safety net: nothing is
// known to need it.
const resync = 10 * time.Minute

// claimPause is how long a new volume waits for the claim it is reserved for before it becomes
// Available. It waits again while many claims are in work, until it is as old as mostPauses. That
// limit exists because claims that always fail stay in work for ever.
const (
	claimPause = time.Second
	mostPauses = time.Minute
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// watches store what the API server delivers in the cache and enqueue what it concerns. Both
// controllers start only when the cache is complete.
type watches struct {
	cache cache.Cache
	pods  cache.Cache
	books *books
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
		from   cache.Cache
		object client.Object
		handle toolscache.ResourceEventHandler
	}{
		{w.cache, &storagev1.StorageClass{}, handler(w, (*books).sawClass, (*books).lostClass)},
		{w.cache, &corev1.PersistentVolume{}, handler(w, (*books).sawVolume, (*books).lostVolume)},
		{w.cache, &corev1.PersistentVolumeClaim{}, handler(w, (*books).sawClaim, (*books).lostClaim)},
		{w.pods, &corev1.Pod{}, handler(w, (*books).sawPod, (*books).sawPod)},
	}
	for _, h := range handlers {
		if h.from == nil {
			continue // without a pod cache, Events do not name pods; nothing else needs it
		}
		informer, err := h.from.GetInformer(ctx, h.object, cache.BlockUntilSynced(false))
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
		ticker := time.NewTicker(resync)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		w.wake(w.books.everything())
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
	}
}

// handler stores objects of one kind in the cache.
func handler[T client.Object](w *watches, saw, lost func(*books, T) wakes) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell(w, o, saw) },
		UpdateFunc: func(_, o any) { tell(w, o, saw) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			tell(w, o, lost)
		},
	}
}

func tell[T client.Object](w *watches, o any, enter func(*books, T) wakes) {
	if object, ok := o.(T); ok {
		w.wake(enter(w.books, object))
	}
}

// wake adds claims and volumes to the queues.
func (w *watches) wake(who wakes) {
	for key := range who.claims {
		w.claims.Add(reconcile.Request{NamespacedName: key})
	}
	for name := range who.volumes {
		w.volumes.Add(reconcile.Request{NamespacedName: claimKey{Name: name}})
	}
	for name := range who.later {
		w.volumes.AddAfter(reconcile.Request{NamespacedName: claimKey{Name: name}}, claimPause)
	}
}

func (b *books) sawClaim(claim *corev1.PersistentVolumeClaim) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := keyOf(claim)
	had := b.claims[key]
	b.notice(claimWrite(had, claim))
	news := b.putClaim(claim, true)
	b.listener.claimSeen(b.claims[key]) // the cached one: a late watch may show a claim that was not bound yet
	return b.afterClaim(had, claim, news)
}

func (b *books) lostClaim(claim *corev1.PersistentVolumeClaim) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	doubted := b.unsure[keyOf(claim)]
	w := b.afterClaim(claim, nil, b.dropClaim(claim))
	if b.doubtful[doubted] {
		b.wakeVolume(&w, doubted) // no reconcile of the claim will read it again
	}
	return w
}

// afterClaim returns what to enqueue after a claim changed: the claim, the volumes that point at
// it, and those it names or named.
func (b *books) afterClaim(had, claim *corev1.PersistentVolumeClaim, news bool) wakes {
	var w wakes
	if !news {
		return w
	}
	for _, c := range []*corev1.PersistentVolumeClaim{had, claim} {
		if c == nil {
			continue
		}
		for name := range b.pointing[keyOf(c)] {
			b.wakeVolume(&w, name)
		}
		if c.Spec.VolumeName != "" {
			b.wakeVolume(&w, c.Spec.VolumeName)
		}
	}
	if claim != nil {
		b.wakeClaim(&w, keyOf(claim))
	} else {
		b.pass(&w, keyOf(had))
	}
	b.offerFresh(&w)
	return w
}

func (b *books) sawVolume(v *corev1.PersistentVolume) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	had := b.volumes[v.Name]
	b.notice(volumeWrite(had, v))
	b.listener.volumeSeen(v)
	return b.afterVolume(had, v, b.putVolume(v, true))
}

func (b *books) lostVolume(v *corev1.PersistentVolume) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.afterVolume(v, nil, b.dropVolume(v))
}

// afterVolume returns what to enqueue after a volume changed: the volume, and the claims it points
// or pointed at or that name it. If it is free, it also returns a claim that it may serve.
func (b *books) afterVolume(had, v *corev1.PersistentVolume, news bool) wakes {
	var w wakes
	if !news {
		return w
	}
	name := ""
	for _, vol := range []*corev1.PersistentVolume{had, v} {
		if vol == nil {
			continue
		}
		name = vol.Name
		if key, ok := refKey(vol); ok {
			b.wakeClaim(&w, key)
		}
	}
	for key := range b.naming[name] {
		b.wakeClaim(&w, key)
	}
	b.wakeVolume(&w, name)
	b.offerFresh(&w)
	return w
}

// sawClass stores a class and enqueues the claims that seek a volume of it. If the default class
// changed, it also enqueues the claims that set no class.
func (b *books) sawClass(class *storagev1.StorageClass) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.defaultClass()
	b.putClass(class)
	return b.afterClass(class.Name, before)
}

func (b *books) lostClass(class *storagev1.StorageClass) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.defaultClass()
	b.dropClass(class)
	return b.afterClass(class.Name, before)
}

func (b *books) afterClass(name string, before *storagev1.StorageClass) wakes {
	var w wakes
	for key := range b.seeking[name] {
		w.claim(key)
	}
	if now := b.defaultClass(); now != nil && (before == nil || before.Name != now.Name) {
		for key := range b.unsaid {
			w.claim(key)
		}
	}
	return w
}

// sawPod enqueues the pod's claims that wait for a pod to be scheduled, as the text of their Events
// may change.
func (b *books) sawPod(pod *corev1.Pod) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	var w wakes
	for _, name := range volume.ClaimsOfPod(pod) {
		key := claimKey{Namespace: pod.Namespace, Name: name}
		claim := b.claims[key]
		if claim == nil || volume.StateOfClaim(claim) != volume.ClaimUnbound {
			continue
		}
		if waits, err := volume.WaitsForConsumer(b.classes[volume.ClassOf(claim)]); err == nil && waits {
			w.claim(key)
		}
	}
	return w
}

// everything returns all claims and volumes that are not settled.
func (b *books) everything() wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	var w wakes
	for key := range b.claims {
		b.wakeClaim(&w, key)
	}
	for name := range b.volumes {
		b.wakeVolume(&w, name)
	}
	return w
}
