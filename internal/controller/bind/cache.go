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

// cache is the binder's cache of claims, volumes and classes. It holds what the watches delivered
// and the answers to the binder's own writes, whichever is newer. The binder decides, and reserves
// the volumes it decided on, under one short lock, so two workers never decide about the same
// volume. Objects in the cache are shared and never changed.
type cache struct {
	mu      sync.Mutex
	claims  map[claimKey]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass

	byClaimRef       map[claimKey]set[string] // volumes by the claim that they point at
	byVolumeName     map[string]set[claimKey] // claims by the volume that they name
	preboundTo       map[string]set[claimKey] // claims of byVolumeName that are about to take a volume whose claimRef is empty
	unbound          map[string]set[claimKey] // claims that name no volume, by class
	withoutClass     set[claimKey]            // those of unbound whose class is not set
	free             *index[*corev1.PersistentVolume]
	newlyFree        []string               // volumes that became free since the last offers
	waiting          *index[waitingClaim]   // claims that take any fitting volume and have no offer
	offered          map[claimKey]string    // the free volume that each claim was enqueued for
	offers           map[string]claimKey    // the same from the volume's side
	backingOff       set[claimKey]          // claims whose write was rejected; each retries after a pause
	locks            map[string]*volumeLock // volumes that a worker has locked
	uncertainVolumes map[string]bool        // volumes to read from the API server before the next decision about them
	uncertainClaims  map[claimKey]string    // claims to read from the API server first, each with the volume it was being bound to
	absentClasses    set[string]            // class names that the API server does not know

	noProvisioning bool
	listener       listener
}

// volumeLock is one worker's exclusive right to write a volume.
type volumeLock struct {
	claim           claimKey       // the worker's claim; empty if the worker works on the volume itself
	waiting         set[claimKey]  // claims that wanted the volume meanwhile
	changed         bool           // a change of the volume arrived meanwhile
	claimRefChanged bool           // the worker changed the claimRef
	foreign         []foreignWrite // phase changes seen meanwhile; they may be the worker's own
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

func newCache(noProvisioning bool, l listener) *cache {
	return &cache{
		claims: map[claimKey]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
		classes: map[string]*storagev1.StorageClass{}, byClaimRef: map[claimKey]set[string]{},
		byVolumeName: map[string]set[claimKey]{}, preboundTo: map[string]set[claimKey]{}, unbound: map[string]set[claimKey]{}, withoutClass: set[claimKey]{},
		free: newIndex[*corev1.PersistentVolume](), waiting: newIndex[waitingClaim](),
		offered: map[claimKey]string{}, offers: map[string]claimKey{}, backingOff: set[claimKey]{}, locks: map[string]*volumeLock{},
		uncertainVolumes: map[string]bool{}, uncertainClaims: map[claimKey]string{}, absentClasses: set[string]{},
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
func (c *cache) putClaim(claim *corev1.PersistentVolumeClaim, watched bool) bool {
	key := keyOf(claim)
	had := c.claims[key]
	if had == nil && !watched || had != nil && had.UID != claim.UID && !watched {
		return false
	}
	if had != nil && !newer(had, claim) {
		if sameVersion(had, claim) && watched {
			c.replaceClaim(key, had, claim)
		}
		return false
	}
	if had != nil && had.UID != claim.UID {
		c.listener.gone(had.UID)
	}
	c.replaceClaim(key, had, claim)
	return true
}

// dropClaim removes a claim from the cache and says whether it was there.
func (c *cache) dropClaim(claim *corev1.PersistentVolumeClaim) bool {
	key := keyOf(claim)
	had := c.claims[key]
	if had == nil || had.UID != claim.UID {
		return false
	}
	c.replaceClaim(key, had, nil)
	delete(c.uncertainClaims, key)
	delete(c.backingOff, key)
	c.listener.gone(had.UID)
	return true
}

// replaceClaim sets a claim, nil for none, and updates every index.
func (c *cache) replaceClaim(key claimKey, had, claim *corev1.PersistentVolumeClaim) {
	if had != nil {
		removeFrom(c.byVolumeName, had.Spec.VolumeName, key)
		removeFrom(c.preboundTo, had.Spec.VolumeName, key)
		removeFrom(c.unbound, volume.ClassOf(had), key)
		delete(c.withoutClass, key)
	}
	if claim == nil {
		delete(c.claims, key)
		c.waiting.remove(key.String())
	} else {
		c.claims[key] = claim
		if claim.Spec.VolumeName != "" {
			addTo(c.byVolumeName, claim.Spec.VolumeName, key)
			c.indexPrebound(c.volumes[claim.Spec.VolumeName], claim)
		}
		c.indexClaim(key, claim)
	}
	for _, either := range []*corev1.PersistentVolumeClaim{had, claim} {
		if either != nil && either.Spec.VolumeName != "" {
			c.indexVolume(either.Spec.VolumeName)
		}
	}
}

// indexClaim adds a claim without a volume to the index by class. It adds it to the waiting claims too if
// any fitting volume will do.
func (c *cache) indexClaim(key claimKey, claim *corev1.PersistentVolumeClaim) {
	c.waiting.remove(key.String())
	if volume.StateOfClaim(claim) != volume.ClaimUnbound {
		return
	}
	addTo(c.unbound, volume.ClassOf(claim), key)
	if !volume.HasClass(claim) {
		c.withoutClass[key] = struct{}{}
	}
	_, offered := c.offered[key]
	if _, resting := c.backingOff[key]; !offered && !resting && c.takesAnyVolume(claim) {
		c.waiting.put(key.String(), indexKeyOfClaim(claim), volume.Request(claim), waitingClaimOf(claim))
	}
}

// takesAnyVolume says whether a claim takes any free volume that fits.
func (c *cache) takesAnyVolume(claim *corev1.PersistentVolumeClaim) bool {
	if claim == nil || claim.DeletionTimestamp != nil || volume.StateOfClaim(claim) != volume.ClaimUnbound || volume.HasSource(claim) {
		return false
	}
	waits, err := volume.WaitsForConsumer(c.classes[volume.ClassOf(claim)])
	return err == nil && !waits
}

// putVolume stores a volume and says whether it is news, as putClaim does.
func (c *cache) putVolume(v *corev1.PersistentVolume, watched bool) bool {
	had := c.volumes[v.Name]
	if had == nil && !watched || had != nil && had.UID != v.UID && !watched {
		return false
	}
	if had != nil && !newer(had, v) {
		if sameVersion(had, v) && watched {
			c.replaceVolume(v.Name, had, v)
		}
		return false
	}
	if had != nil && had.UID != v.UID {
		c.listener.gone(had.UID)
	}
	c.replaceVolume(v.Name, had, v)
	return true
}

// dropVolume removes a volume from the cache and says whether it was there.
func (c *cache) dropVolume(v *corev1.PersistentVolume) bool {
	had := c.volumes[v.Name]
	if had == nil || had.UID != v.UID {
		return false
	}
	c.replaceVolume(v.Name, had, nil)
	delete(c.uncertainVolumes, v.Name)
	c.listener.gone(had.UID)
	return true
}

func (c *cache) replaceVolume(name string, had, v *corev1.PersistentVolume) {
	if key, ok := refKey(had); ok {
		removeFrom(c.byClaimRef, key, name)
	}
	delete(c.preboundTo, name)
	if v == nil {
		delete(c.volumes, name)
	} else {
		c.volumes[name] = v
		if key, ok := refKey(v); ok {
			addTo(c.byClaimRef, key, name)
		}
		for key := range c.byVolumeName[name] {
			c.indexPrebound(v, c.claims[key])
		}
	}
	c.indexVolume(name)
}

// indexVolume adds a volume to the free ones if any claim may get it, else removes it. A volume is not
// free while a worker has locked it, while it is uncertain, or when a claim that names it is about to
// take it.
func (c *cache) indexVolume(name string) {
	v := c.volumes[name]
	serves := v != nil && volume.Free(v) && c.locks[name] == nil && !c.uncertainVolumes[name] && len(c.preboundTo[name]) == 0
	if at, was := c.free.positions[name]; was && (!serves || c.indexChanged(at, v)) {
		c.free.remove(name)
		c.removeOffer(name)
		c.listener.freeVolumes(at.key.class, -1)
	}
	if !serves {
		return
	}
	if !c.free.has(name) {
		c.newlyFree = append(c.newlyFree, name)
		c.listener.freeVolumes(volume.ClassOfVolume(v), 1)
	}
	c.free.put(name, indexKeyOfVolume(v), *volume.Capacity(v), v)
}

// indexChanged says whether a volume's key, size or labels differ from those it was stored with.
func (c *cache) indexChanged(at position, v *corev1.PersistentVolume) bool {
	before, _ := c.free.get(v.Name)
	return at.key != indexKeyOfVolume(v) || at.size.Cmp(*volume.Capacity(v)) != 0 || !maps.Equal(before.Labels, v.Labels)
}

// indexPrebound records a claim that is about to take the volume it names. Users can create any number of
// claims that name one volume, so the binder does not search them each time.
func (c *cache) indexPrebound(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	if v != nil && v.Spec.ClaimRef == nil && willTakeNamed(v, claim) {
		addTo(c.preboundTo, v.Name, keyOf(claim))
	}
}

// putClass stores a class and updates the index for the claims of that class.
func (c *cache) putClass(class *storagev1.StorageClass) {
	c.classes[class.Name] = class
	delete(c.absentClasses, class.Name)
	c.indexClassAgain(class.Name)
}

func (c *cache) dropClass(class *storagev1.StorageClass) {
	delete(c.classes, class.Name)
	delete(c.absentClasses, class.Name)
	c.indexClassAgain(class.Name)
}

func (c *cache) indexClassAgain(class string) {
	for key := range c.unbound[class] {
		c.indexClaim(key, c.claims[key])
	}
}

func (c *cache) defaultClass() *storagev1.StorageClass {
	classes := make([]*storagev1.StorageClass, 0, len(c.classes))
	for _, class := range c.classes {
		classes = append(classes, class)
	}
	return volume.DefaultClass(classes)
}

func addTo[K, V comparable](m map[K]set[V], key K, value V) {
	if m[key] == nil {
		m[key] = set[V]{}
	}
	m[key][value] = struct{}{}
}

func removeFrom[K, V comparable](m map[K]set[V], key K, value V) {
	delete(m[key], value)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}
