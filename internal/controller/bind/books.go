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

// books is the binder's cache of claims, volumes and classes. It holds what the watches delivered
// and the answers to the binder's own writes, whichever is newer. The binder decides, and reserves
// the volumes it decided on, under one short lock, so two workers never decide about the same
// volume. Objects in the cache are shared and never changed.
type books struct {
	mu      sync.Mutex
	claims  map[claimKey]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass

	pointing map[claimKey]set[string] // volumes by the claim that they point at
	naming   map[string]set[claimKey] // claims by the volume that they name
	taking   map[string]set[claimKey] // those of naming that are about to take a volume whose claimRef is empty
	seeking  map[string]set[claimKey] // claims that name no volume, by class
	unsaid   set[claimKey]            // those of seeking whose class is not set
	free     *store[*corev1.PersistentVolume]
	fresh    []string            // volumes that became free since the last offers
	waiting  *store[seeker]      // claims that take any fitting volume and have no offer
	offered  map[claimKey]string // the free volume that each claim was enqueued for
	offers   map[string]claimKey // the same from the volume's side
	resting  set[claimKey]       // claims whose write was rejected; each retries after a pause
	held     map[string]*hold    // volumes that a worker works on
	doubtful map[string]bool     // volumes to read from the API server before the next decision about them
	unsure   map[claimKey]string // claims to read likewise, each with the volume it was being joined to
	absent   set[string]         // class names that the API server does not know

	noProvisioning bool
	listener       listener
}

// hold is one worker's exclusive right to write a volume.
type hold struct {
	claim   claimKey       // the worker's claim; empty if the worker works on the volume itself
	waiting set[claimKey]  // claims that wanted the volume meanwhile
	missed  bool           // a change of the volume arrived meanwhile
	moved   bool           // the worker changed the claimRef
	foreign []foreignWrite // phase changes seen meanwhile; they may be the worker's own
}

// listener receives what enters the cache, under the cache's lock.
type listener interface {
	claimSeen(*corev1.PersistentVolumeClaim)
	volumeSeen(*corev1.PersistentVolume)
	gone(types.UID)
	// freeVolumes changes the number of free volumes of a class by more, which may be negative.
	freeVolumes(class string, more int)
	// foreign reports that another binder wrote a phase.
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

// refKey returns the key of the claim that a volume points at, and false if it points at none.
func refKey(v *corev1.PersistentVolume) (claimKey, bool) {
	if v == nil || v.Spec.ClaimRef == nil {
		return claimKey{}, false
	}
	return claimKey{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}, true
}

// sameRef says whether two references name the same claim, or are both nil.
func sameRef(a, b *corev1.ObjectReference) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Namespace == b.Namespace && a.Name == b.Name && a.UID == b.UID
}

// newer says whether the object now replaces had in the cache. Where the versions cannot be
// compared, it does.
func newer(had, now client.Object) bool {
	by, err := resourceversion.CompareResourceVersion(had.GetResourceVersion(), now.GetResourceVersion())
	return err != nil || by < 0
}

func sameVersion(had, now client.Object) bool {
	return had.GetUID() == now.GetUID() && had.GetResourceVersion() == now.GetResourceVersion()
}

// putClaim stores a claim and says whether it is news. Only a watch adds a claim that is not in the
// cache. An answer to a read or write may be late, when the watch has already reported the
// deletion.
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

// dropClaim removes a claim from the cache and says whether it was there.
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

// replaceClaim sets a claim, nil for none, and updates every index.
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

// file adds a claim without a volume to the index by class. It adds it to the waiting claims too if
// any fitting volume will do.
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

// servedByAny says whether a claim takes any free volume that fits.
func (b *books) servedByAny(claim *corev1.PersistentVolumeClaim) bool {
	if claim == nil || claim.DeletionTimestamp != nil || volume.StateOfClaim(claim) != volume.ClaimUnbound || volume.HasSource(claim) {
		return false
	}
	waits, err := volume.WaitsForConsumer(b.classes[volume.ClassOf(claim)])
	return err == nil && !waits
}

// putVolume stores a volume and says whether it is news, as putClaim does.
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

// dropVolume removes a volume from the cache and says whether it was there.
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

// shelve adds a volume to the free ones if any claim may get it, else removes it. A volume is not
// free while a worker holds it, while it is in doubt, or when a claim that names it is about to
// take it.
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

// otherwise says whether a volume's shelf, size or labels differ from those it was stored with.
func (b *books) otherwise(at place, v *corev1.PersistentVolume) bool {
	before, _ := b.free.get(v.Name)
	return at.shelf != shelfOfVolume(v) || at.size.Cmp(*volume.Capacity(v)) != 0 || !maps.Equal(before.Labels, v.Labels)
}

// mayTake records a claim that is about to take the volume it names. Users can create any number of
// claims that name one volume, so the binder does not search them each time.
func (b *books) mayTake(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	if v != nil && v.Spec.ClaimRef == nil && willTakeNamed(v, claim) {
		enter(b.taking, v.Name, keyOf(claim))
	}
}

// putClass stores a class and updates the index for the claims of that class.
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
