package bind

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tarn.dev/tarn/internal/volume"
)

// wakes are the claims and volumes to enqueue.
type wakes struct {
	claims  set[claimKey]
	volumes set[string]
	later   set[string] // volumes to enqueue after a pause
}

func (w *wakes) claim(key claimKey) {
	if w.claims == nil {
		w.claims = set[claimKey]{}
	}
	w.claims[key] = struct{}{}
}

func (w *wakes) volume(name string) {
	if w.volumes == nil {
		w.volumes = set[string]{}
	}
	w.volumes[name] = struct{}{}
}

func (w *wakes) volumeLater(name string) {
	if w.later == nil {
		w.later = set[string]{}
	}
	w.later[name] = struct{}{}
}

// take gives a volume to a worker, for a claim or for the volume itself, and says whether it did. A
// worker that does not get the volume is enqueued again when the volume is released.
func (b *books) take(name string, claim claimKey) bool {
	if h := b.held[name]; h != nil {
		if claim == (claimKey{}) {
			h.missed = true
			return false
		}
		if h.waiting == nil {
			h.waiting = set[claimKey]{}
		}
		h.waiting[claim] = struct{}{}
		return false
	}
	b.held[name] = &hold{claim: claim}
	b.shelve(name)
	return true
}

// letGo ends a worker's hold on a volume. It enqueues the claims that waited for the volume and the
// objects that missed changes concern. It does not enqueue the worker's own claim: after an error,
// that one is retried with backoff.
func (b *books) letGo(name string, err error) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	var w wakes
	h := b.held[name]
	if h == nil {
		return w
	}
	delete(b.held, name)
	for _, write := range h.foreign {
		if !b.doubtful[name] {
			b.listener.foreign(write)
		}
	}
	b.shelve(name)
	if b.doubtful[name] && h.claim != (claimKey{}) && b.claims[h.claim] == nil {
		w.volume(name) // its claim, which would have had it read again, is gone
	}
	if h.missed {
		b.wakeVolume(&w, name)
	}
	if h.moved {
		for key := range b.naming[name] {
			if key != h.claim {
				b.wakeClaim(&w, key)
			}
		}
	}
	delete(w.claims, h.claim)
	for key := range h.waiting {
		w.claim(key)
	}
	if err != nil && b.free.has(name) && b.servedByAny(b.claims[h.claim]) {
		b.pause(&w, name, h.claim, apierrors.IsTooManyRequests(err))
	}
	b.offerFresh(&w)
	return w
}

// pause decides about a free volume after the API server rejected its claim's write. If the API
// server is overloaded, the claim keeps the offer: another claim would only add load. Otherwise the
// rejection may be permanent, so the volume is offered to other claims. The claim gets no offer
// until its retry, or two such claims would enqueue each other endlessly.
func (b *books) pause(w *wakes, name string, key claimKey, busy bool) {
	if !busy {
		b.resting[key] = struct{}{}
		b.file(key, b.claims[key])
	}
	before := b.offered[key]
	b.withdraw(before)
	if busy {
		b.promise(name, key)
		b.fresh = slices.DeleteFunc(b.fresh, func(n string) bool { return n == name })
	}
	b.offer(w, before)
}

// finish ends the reconcile of a claim. It offers the free volume that the claim did not need to
// the next claim, and enqueues the volumes that point at the claim. It enqueues the claim itself
// only if the reconcile succeeded but its volume was deleted or taken meanwhile.
func (b *books) finish(key claimKey, err error) wakes {
	b.mu.Lock()
	defer b.mu.Unlock()
	var w wakes
	b.pass(&w, key)
	if name, ok := b.offered[key]; ok && err != nil && !apierrors.IsTooManyRequests(err) {
		b.pause(&w, name, key, false) // it could choose another each time, and be rejected for that too
	}
	for name := range b.pointing[key] {
		b.wakeVolume(&w, name)
	}
	delete(w.claims, key)
	if c := b.claims[key]; err == nil && c != nil && volume.StateOfClaim(c) == volume.ClaimCompleted && b.held[c.Spec.VolumeName] == nil {
		// Not where the two are joined either: a webhook may undo the remaining writes, for ever.
		if v := b.volumes[c.Spec.VolumeName]; v == nil || !volume.HeldBy(v, c) {
			b.wakeClaim(&w, key)
		}
	}
	b.offerFresh(&w)
	return w
}

// pass offers a claim's volume to the next claim if this claim cannot use it any more.
func (b *books) pass(w *wakes, key claimKey) {
	name, ok := b.offered[key]
	if !ok || b.serves(name, key) {
		return
	}
	b.withdraw(name)
	b.offer(w, name)
}

// serves says whether a claim would take a free volume.
func (b *books) serves(name string, key claimKey) bool {
	v, claim := b.volumes[name], b.claims[key]
	return v != nil && b.servedByAny(claim) && volume.Suits(v, claim) == volume.Fits && seekerOf(claim).selects(v)
}

// offerFresh offers each volume that has just become free.
func (b *books) offerFresh(w *wakes) {
	fresh := b.fresh
	b.fresh = nil
	for _, name := range fresh {
		b.offer(w, name)
	}
}

// offer enqueues the claim that a free volume serves best. It picks one claim for one volume, so
// that a thousand volumes do not each enqueue a thousand waiting claims.
func (b *books) offer(w *wakes, name string) {
	v := b.volumes[name]
	if _, already := b.offers[name]; v == nil || already || !b.free.has(name) {
		return
	}
	if claim := largest(b.waiting, v); claim != nil {
		b.promise(name, keyOf(claim))
		w.claim(keyOf(claim))
	}
}

// promise records the offer of a free volume to a claim. A claim has one offer at most.
func (b *books) promise(name string, key claimKey) {
	b.offered[key], b.offers[name] = name, key
	b.waiting.take(key.String())
}

// withdraw ends the offer of a volume, if there is one.
func (b *books) withdraw(name string) {
	key, ok := b.offers[name]
	if !ok {
		return
	}
	delete(b.offers, name)
	delete(b.offered, key)
	if claim := b.claims[key]; claim != nil {
		b.file(key, claim)
	}
}

// wakeVolume enqueues what must act on a volume: the volume itself, or claims. It enqueues nothing
// if the volume is settled or a worker holds it.
func (b *books) wakeVolume(w *wakes, name string) {
	v := b.volumes[name]
	if v == nil {
		return
	}
	if h := b.held[name]; h != nil {
		h.missed = true // it is checked when the hold ends
		return
	}
	if b.doubtful[name] {
		w.volume(name) // to be read again
		return
	}
	view := b.viewVolume(v)
	plan := planVolume(view)
	if plan.idle() {
		return
	}
	if expectsClaim(view) {
		w.volumeLater(name)
		return
	}
	var claims []claimKey
	for _, a := range plan.Actions {
		if woken, ok := a.(WakeClaim); ok {
			claims = append(claims, woken.Key)
		}
	}
	if plan.Ask || len(claims) < len(plan.Actions) {
		w.volume(name)
		return
	}
	for _, key := range claims {
		w.claim(key)
	}
}

// wakeClaim enqueues a claim unless it is settled.
func (b *books) wakeClaim(w *wakes, key claimKey) {
	claim := b.claims[key]
	if claim == nil {
		return
	}
	if _, unsure := b.unsure[key]; unsure || volume.StateOfClaim(claim) == volume.ClaimUnbound {
		w.claim(key)
		return
	}
	if plan := planClaim(b.viewClaim(claim)); !plan.idle() {
		w.claim(key)
	}
}

// record stores the answers to writes.
func (b *books) record(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if claim != nil {
		b.putClaim(claim, false)
		b.own(claim.Spec.VolumeName, claim.ResourceVersion)
	}
	if v != nil {
		had := b.volumes[v.Name]
		if h := b.held[v.Name]; b.putVolume(v, false) && h != nil && !sameRef(had.Spec.ClaimRef, v.Spec.ClaimRef) {
			h.missed, h.moved = true, true // the watch delivers the same version later, which is no news
		}
		b.own(v.Name, v.ResourceVersion)
	}
}
