package bind

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tarn.dev/tarn/internal/volume"
)

// requests are the claims and volumes to enqueue.
type requests struct {
	claims  set[claimKey]
	volumes set[string]
	later   set[string] // volumes to enqueue after a pause
}

func (q *requests) claim(key claimKey) {
	if q.claims == nil {
		q.claims = set[claimKey]{}
	}
	q.claims[key] = struct{}{}
}

func (q *requests) volume(name string) {
	if q.volumes == nil {
		q.volumes = set[string]{}
	}
	q.volumes[name] = struct{}{}
}

func (q *requests) volumeLater(name string) {
	if q.later == nil {
		q.later = set[string]{}
	}
	q.later[name] = struct{}{}
}

// take locks a volume for a worker, for a claim or for the volume itself, and says whether it did. A
// worker that does not get the volume is enqueued again when the volume is unlocked.
func (c *cache) lockVolume(name string, claim claimKey) bool {
	if h := c.locks[name]; h != nil {
		if claim == (claimKey{}) {
			h.changed = true
			return false
		}
		if h.waiting == nil {
			h.waiting = set[claimKey]{}
		}
		h.waiting[claim] = struct{}{}
		return false
	}
	c.locks[name] = &volumeLock{claim: claim}
	c.indexVolume(name)
	return true
}

// unlockVolume unlocks a volume. It enqueues the claims that waited for the volume and the
// objects that missed changes concern. It does not enqueue the worker's own claim: after an error,
// that one is retried with backoff.
func (c *cache) unlockVolume(name string, err error) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	var q requests
	h := c.locks[name]
	if h == nil {
		return q
	}
	delete(c.locks, name)
	for _, write := range h.foreign {
		if !c.uncertainVolumes[name] {
			c.listener.foreign(write)
		}
	}
	c.indexVolume(name)
	if c.uncertainVolumes[name] && h.claim != (claimKey{}) && c.claims[h.claim] == nil {
		q.volume(name) // its claim, which would have had it read again, is gone
	}
	if h.changed {
		c.enqueueVolume(&q, name)
	}
	if h.claimRefChanged {
		for key := range c.byVolumeName[name] {
			if key != h.claim {
				c.enqueueClaim(&q, key)
			}
		}
	}
	delete(q.claims, h.claim)
	for key := range h.waiting {
		q.claim(key)
	}
	if err != nil && c.free.has(name) && c.takesAnyVolume(c.claims[h.claim]) {
		c.backOff(&q, name, h.claim, apierrors.IsTooManyRequests(err))
	}
	c.offerNewlyFree(&q)
	return q
}

// backOff decides about a free volume after the API server rejected its claim's write. If the API
// server is overloaded, the claim keeps the offer: another claim would only add load. Otherwise the
// rejection may be permanent, so the volume is offered to other claims. The claim gets no offer
// until its retry, or two such claims would enqueue each other endlessly.
func (c *cache) backOff(q *requests, name string, key claimKey, busy bool) {
	if !busy {
		c.backingOff[key] = struct{}{}
		c.indexClaim(key, c.claims[key])
	}
	before := c.offered[key]
	c.removeOffer(before)
	if busy {
		c.setOffer(name, key)
		c.newlyFree = slices.DeleteFunc(c.newlyFree, func(n string) bool { return n == name })
	}
	c.offer(q, before)
}

// finishClaim ends the reconcile of a claim. It offers the free volume that the claim did not need to
// the next claim, and enqueues the volumes that point at the claim. It enqueues the claim itself
// only if the reconcile succeeded but its volume was deleted or taken meanwhile.
func (c *cache) finishClaim(key claimKey, err error) requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	var q requests
	c.passOffer(&q, key)
	if name, ok := c.offered[key]; ok && err != nil && !apierrors.IsTooManyRequests(err) {
		c.backOff(&q, name, key, false) // it could choose another each time, and be rejected for that too
	}
	for name := range c.byClaimRef[key] {
		c.enqueueVolume(&q, name)
	}
	delete(q.claims, key)
	if claim := c.claims[key]; err == nil && claim != nil && volume.StateOfClaim(claim) == volume.ClaimCompleted && c.locks[claim.Spec.VolumeName] == nil {
		// Not where the two are joined either: a webhook may undo the remaining writes, for ever.
		if v := c.volumes[claim.Spec.VolumeName]; v == nil || !volume.HeldBy(v, claim) {
			c.enqueueClaim(&q, key)
		}
	}
	c.offerNewlyFree(&q)
	return q
}

// passOffer offers a claim's volume to the next claim if this claim cannot use it any more.
func (c *cache) passOffer(q *requests, key claimKey) {
	name, ok := c.offered[key]
	if !ok || c.canServe(name, key) {
		return
	}
	c.removeOffer(name)
	c.offer(q, name)
}

// canServe says whether a claim would take a free volume.
func (c *cache) canServe(name string, key claimKey) bool {
	v, claim := c.volumes[name], c.claims[key]
	return v != nil && c.takesAnyVolume(claim) && volume.Suits(v, claim) == volume.Fits && waitingClaimOf(claim).selects(v)
}

// offerNewlyFree offers each volume that has just become free.
func (c *cache) offerNewlyFree(q *requests) {
	fresh := c.newlyFree
	c.newlyFree = nil
	for _, name := range fresh {
		c.offer(q, name)
	}
}

// offer enqueues the claim that a free volume serves best. It picks one claim for one volume, so
// that a thousand volumes do not each enqueue a thousand waiting claims.
func (c *cache) offer(q *requests, name string) {
	v := c.volumes[name]
	if _, already := c.offers[name]; v == nil || already || !c.free.has(name) {
		return
	}
	if claim := largest(c.waiting, v); claim != nil {
		c.setOffer(name, keyOf(claim))
		q.claim(keyOf(claim))
	}
}

// setOffer records the offer of a free volume to a claim. A claim has one offer at most.
func (c *cache) setOffer(name string, key claimKey) {
	c.offered[key], c.offers[name] = name, key
	c.waiting.remove(key.String())
}

// removeOffer ends the offer of a volume, if there is one.
func (c *cache) removeOffer(name string) {
	key, ok := c.offers[name]
	if !ok {
		return
	}
	delete(c.offers, name)
	delete(c.offered, key)
	if claim := c.claims[key]; claim != nil {
		c.indexClaim(key, claim)
	}
}

// enqueueVolume enqueues what must act on a volume: the volume itself, or claims. It enqueues nothing
// if the volume is settled or a worker has locked it.
func (c *cache) enqueueVolume(q *requests, name string) {
	v := c.volumes[name]
	if v == nil {
		return
	}
	if h := c.locks[name]; h != nil {
		h.changed = true // it is checked when the volume is unlocked
		return
	}
	if c.uncertainVolumes[name] {
		q.volume(name) // to be read again
		return
	}
	view := c.volumeView(v)
	plan := planVolume(view)
	if plan.idle() {
		return
	}
	if expectsClaim(view) {
		q.volumeLater(name)
		return
	}
	var claims []claimKey
	for _, a := range plan.Actions {
		if woken, ok := a.(EnqueueClaim); ok {
			claims = append(claims, woken.Key)
		}
	}
	if plan.NeedsLiveRead || len(claims) < len(plan.Actions) {
		q.volume(name)
		return
	}
	for _, key := range claims {
		q.claim(key)
	}
}

// enqueueClaim enqueues a claim unless it is settled.
func (c *cache) enqueueClaim(q *requests, key claimKey) {
	claim := c.claims[key]
	if claim == nil {
		return
	}
	if _, unsure := c.uncertainClaims[key]; unsure || volume.StateOfClaim(claim) == volume.ClaimUnbound {
		q.claim(key)
		return
	}
	if plan := planClaim(c.claimView(claim)); !plan.idle() {
		q.claim(key)
	}
}

// putWritten stores the answers to writes.
func (c *cache) putWritten(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim != nil {
		c.putClaim(claim, false)
		c.noticeOwn(claim.Spec.VolumeName, claim.ResourceVersion)
	}
	if v != nil {
		had := c.volumes[v.Name]
		if h := c.locks[v.Name]; c.putVolume(v, false) && h != nil && !sameRef(had.Spec.ClaimRef, v.Spec.ClaimRef) {
			h.changed, h.claimRefChanged = true, true // the watch delivers the same version later, which is no news
		}
		c.noticeOwn(v.Name, v.ResourceVersion)
	}
}
