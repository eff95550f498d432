package bind

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/volume"
)

// claimKey is the namespace and name of a claim.
type claimKey = types.NamespacedName

// set is a set of names.
type set[K comparable] map[K]struct{}

// books are what the binder knows of claims, volumes and classes: what the watches
// have told, and on top of that the answer to each of its own writes, whichever is
// newer. A decision is made and what it takes is set aside under one short lock, so
// that two workers never decide about the same volume. Objects in the books are
// shared and never changed.
type books struct {
	mu      sync.Mutex
	claims  map[claimKey]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass

	pointing map[claimKey]set[string] // volumes by the claim they point at
	naming   map[string]set[claimKey] // claims by the volume they name
	taking   map[string]set[claimKey] // of these, those about to take it, where it points at nobody
	seeking  map[string]set[claimKey] // claims that name no volume, by class
	unsaid   set[claimKey]            // of these, those that say nothing of a class
	free     *store[*corev1.PersistentVolume]
	fresh    []string            // volumes that have become free since it was last asked
	waiting  *store[seeker]      // claims that any fitting volume would serve and that were offered none
	offered  map[claimKey]string // claims woken for a free volume
	offers   map[string]claimKey // the same from the volume's side
	resting  set[claimKey]       // claims that were refused, and come back by themselves after a pause
	held     map[string]*hold    // volumes somebody works on
	doubtful map[string]bool     // volumes to be read anew before anything is decided about them
	unsure   map[claimKey]string // claims likewise, each with the volume it was being joined to
	absent   set[string]         // classes of volumes that the API server does not know

	noProvisioning bool
	listener       listener
}

// hold is the right of one worker to write a volume.
type hold struct {
	claim   claimKey       // of the worker, empty for a worker on the volume itself
	waiting set[claimKey]  // claims that were turned away
	missed  bool           // something came up about the volume meanwhile
	moved   bool           // the worker had it point elsewhere
	foreign []foreignWrite // changes of phase seen meanwhile, which may be the worker's own
}

// listener hears of what enters the books, under their lock.
type listener interface {
	claimSeen(*corev1.PersistentVolumeClaim)
	volumeSeen(*corev1.PersistentVolume)
	gone(types.UID)
	// freeVolumes says that a class has more free volumes, or fewer.
	freeVolumes(class string, more int)
	// foreign says that another binder has written a phase.
	foreign(foreignWrite)
}

func newBooks(noProvisioning bool, l listener) *books {
	return &books{
		claims: map[claimKey]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
		classes: map[string]*storagev1.StorageClass{}, pointing: map[claimKey]set[string]{},
		naming: map[string]set[claimKey]{}, taking: map[string]set[claimKey]{}, seeking: map[string]set[claimKey]{}, unsaid: set[claimKey]{},
		free: newStore[*corev1.PersistentVolume](), waiting: newStore[seeker](),
		offered: map[claimKey]string{}, offers: map[string]claimKey{}, resting: set[claimKey]{}, held: map[string]*hold{},
		doubtful: map[string]bool{}, unsure: map[claimKey]string{}, absent: set[string]{},
		noProvisioning: noProvisioning, listener: l,
	}
}

func keyOf(claim *corev1.PersistentVolumeClaim) claimKey {
	return claimKey{Namespace: claim.Namespace, Name: claim.Name}
}

// refKey is the key of the claim a volume points at.
func refKey(v *corev1.PersistentVolume) (claimKey, bool) {
	if v == nil || v.Spec.ClaimRef == nil {
		return claimKey{}, false
	}
	return claimKey{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}, true
}

// sameRef says whether two volumes point at the same claim, or both at none.
func sameRef(a, b *corev1.ObjectReference) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Namespace == b.Namespace && a.Name == b.Name && a.UID == b.UID
}

// newer says whether an object is to replace the one in the books. Of two with the
// same version the later is taken, as it is the one the caches share.
func newer(had, now client.Object) bool {
	by, err := resourceversion.CompareResourceVersion(had.GetResourceVersion(), now.GetResourceVersion())
	return err != nil || by < 0
}

func sameVersion(had, now client.Object) bool {
	return had.GetUID() == now.GetUID() && had.GetResourceVersion() == now.GetResourceVersion()
}

// putClaim enters a claim and says whether that is news. A claim that is not in the
// books is entered only by a watch: whoever has read or written it may be late, and
// the watch have told that it is gone.
func (b *books) putClaim(claim *corev1.PersistentVolumeClaim, watched bool) bool {
	key := keyOf(claim)
	had := b.claims[key]
	if had == nil && !watched || had != nil && had.UID != claim.UID && !watched {
		return false
	}
	if had != nil && !newer(had, claim) {
		if sameVersion(had, claim) && watched {
			b.replaceClaim(key, had, claim)
		}
		return false
	}
	if had != nil && had.UID != claim.UID {
		b.listener.gone(had.UID)
	}
	b.replaceClaim(key, had, claim)
	return true
}

// dropClaim strikes a claim out, and says whether it was there.
func (b *books) dropClaim(claim *corev1.PersistentVolumeClaim) bool {
	key := keyOf(claim)
	had := b.claims[key]
	if had == nil || had.UID != claim.UID {
		return false
	}
	b.replaceClaim(key, had, nil)
	delete(b.unsure, key)
	delete(b.resting, key)
	b.listener.gone(had.UID)
	return true
}

// replaceClaim sets a claim, nil for none, and all that is found by it.
func (b *books) replaceClaim(key claimKey, had, claim *corev1.PersistentVolumeClaim) {
	if had != nil {
		drop(b.naming, had.Spec.VolumeName, key)
		drop(b.taking, had.Spec.VolumeName, key)
		drop(b.seeking, volume.ClassOf(had), key)
		delete(b.unsaid, key)
	}
	if claim == nil {
		delete(b.claims, key)
		b.waiting.take(key.String())
	} else {
		b.claims[key] = claim
		if claim.Spec.VolumeName != "" {
			enter(b.naming, claim.Spec.VolumeName, key)
			b.mayTake(b.volumes[claim.Spec.VolumeName], claim)
		}
		b.file(key, claim)
	}
	for _, c := range []*corev1.PersistentVolumeClaim{had, claim} {
		if c != nil && c.Spec.VolumeName != "" {
			b.shelve(c.Spec.VolumeName)
		}
	}
}

// file enters a claim that seeks a volume where it is found by class, and where it is
// found by what it asks for if any volume would do.
func (b *books) file(key claimKey, claim *corev1.PersistentVolumeClaim) {
	b.waiting.take(key.String())
	if volume.StateOfClaim(claim) != volume.ClaimUnbound {
		return
	}
	enter(b.seeking, volume.ClassOf(claim), key)
	if !volume.HasClass(claim) {
		b.unsaid[key] = struct{}{}
	}
	_, offered := b.offered[key]
	if _, resting := b.resting[key]; !offered && !resting && b.servedByAny(claim) {
		b.waiting.put(key.String(), shelfOfClaim(claim), volume.Request(claim), seekerOf(claim))
	}
}

// servedByAny says whether a claim would take any free volume that fits.
func (b *books) servedByAny(claim *corev1.PersistentVolumeClaim) bool {
	if claim == nil || claim.DeletionTimestamp != nil || volume.StateOfClaim(claim) != volume.ClaimUnbound || volume.HasSource(claim) {
		return false
	}
	waits, err := volume.WaitsForConsumer(b.classes[volume.ClassOf(claim)])
	return err == nil && !waits
}

// putVolume enters a volume and says whether that is news, as putClaim does.
func (b *books) putVolume(v *corev1.PersistentVolume, watched bool) bool {
	had := b.volumes[v.Name]
	if had == nil && !watched || had != nil && had.UID != v.UID && !watched {
		return false
	}
	if had != nil && !newer(had, v) {
		if sameVersion(had, v) && watched {
			b.replaceVolume(v.Name, had, v)
		}
		return false
	}
	if had != nil && had.UID != v.UID {
		b.listener.gone(had.UID)
	}
	b.replaceVolume(v.Name, had, v)
	return true
}

// dropVolume strikes a volume out, and says whether it was there.
func (b *books) dropVolume(v *corev1.PersistentVolume) bool {
	had := b.volumes[v.Name]
	if had == nil || had.UID != v.UID {
		return false
	}
	b.replaceVolume(v.Name, had, nil)
	delete(b.doubtful, v.Name)
	b.listener.gone(had.UID)
	return true
}

func (b *books) replaceVolume(name string, had, v *corev1.PersistentVolume) {
	if key, ok := refKey(had); ok {
		drop(b.pointing, key, name)
	}
	delete(b.taking, name)
	if v == nil {
		delete(b.volumes, name)
	} else {
		b.volumes[name] = v
		if key, ok := refKey(v); ok {
			enter(b.pointing, key, name)
		}
		for key := range b.naming[name] {
			b.mayTake(v, b.claims[key])
		}
	}
	b.shelve(name)
}

// shelve puts a volume on the shelf of free ones if it is to be given to whoever asks,
// else takes it off: not while somebody works on it or it is in doubt, and not if a
// claim that names it is to have it.
func (b *books) shelve(name string) {
	v := b.volumes[name]
	serves := v != nil && volume.Free(v) && b.held[name] == nil && !b.doubtful[name] && len(b.taking[name]) == 0
	if at, was := b.free.places[name]; was && (!serves || b.otherwise(at, v)) {
		b.free.take(name)
		b.withdraw(name)
		b.listener.freeVolumes(at.shelf.class, -1)
	}
	if !serves {
		return
	}
	if !b.free.has(name) {
		b.fresh = append(b.fresh, name)
		b.listener.freeVolumes(volume.ClassOfVolume(v), 1)
	}
	b.free.put(name, shelfOfVolume(v), *volume.Capacity(v), v)
}

// otherwise says whether a volume may serve others than when it was put on the shelf.
func (b *books) otherwise(at place, v *corev1.PersistentVolume) bool {
	before, _ := b.free.get(v.Name)
	return at.shelf != shelfOfVolume(v) || at.size.Cmp(*volume.Capacity(v)) != 0 || !maps.Equal(before.Labels, v.Labels)
}

// mayTake notes a claim that is about to take the volume it names. Anybody can make any number of
// claims that name a volume, so it is not looked for among them each time.
func (b *books) mayTake(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	if v != nil && v.Spec.ClaimRef == nil && willTakeNamed(v, claim) {
		enter(b.taking, v.Name, keyOf(claim))
	}
}

// putClass enters a class, and files anew the claims that seek a volume of it.
func (b *books) putClass(class *storagev1.StorageClass) {
	b.classes[class.Name] = class
	delete(b.absent, class.Name)
	b.refile(class.Name)
}

func (b *books) dropClass(class *storagev1.StorageClass) {
	delete(b.classes, class.Name)
	delete(b.absent, class.Name)
	b.refile(class.Name)
}

func (b *books) refile(class string) {
	for key := range b.seeking[class] {
		b.file(key, b.claims[key])
	}
}

func (b *books) defaultClass() *storagev1.StorageClass {
	classes := make([]*storagev1.StorageClass, 0, len(b.classes))
	for _, class := range b.classes {
		classes = append(classes, class)
	}
	return volume.DefaultClass(classes)
}

func enter[K, V comparable](m map[K]set[V], key K, value V) {
	if m[key] == nil {
		m[key] = set[V]{}
	}
	m[key][value] = struct{}{}
}

func drop[K, V comparable](m map[K]set[V], key K, value V) {
	delete(m[key], value)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}
