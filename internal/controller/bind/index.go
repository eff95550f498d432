package bind

import (
	"cmp"
	"slices"

	"github.com/google/btree"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"tarn.dev/tarn/internal/volume"
)

// indexKey is the key of items that differ only in size, name and labels.
type indexKey struct {
	class, attributes string
	mode              corev1.PersistentVolumeMode
	access            volume.Access
}

// withoutAccess is a key without its access modes.
func (s indexKey) withoutAccess() indexKey {
	return indexKey{class: s.class, attributes: s.attributes, mode: s.mode}
}

func indexKeyOfVolume(v *corev1.PersistentVolume) indexKey {
	return indexKey{
		class: volume.ClassOfVolume(v), attributes: volume.AttributesClassOfVolume(v),
		mode: volume.ModeOfVolume(v), access: volume.AccessOf(v.Spec.AccessModes),
	}
}

func indexKeyOfClaim(c *corev1.PersistentVolumeClaim) indexKey {
	return indexKey{
		class: volume.ClassOf(c), attributes: volume.AttributesClassOf(c),
		mode: volume.ModeOf(c), access: volume.AccessOf(c.Spec.AccessModes),
	}
}

// item is one entry of an index, sorted by size, then by name.
type item[T any] struct {
	size  resource.Quantity
	name  string
	value T
}

func less[T any](a, b item[T]) bool {
	if by := a.size.Cmp(b.size); by != 0 {
		return by < 0
	}
	return a.name < b.name
}

// position is where an item is stored.
type position struct {
	key  indexKey
	size resource.Quantity
}

// afterNames sorts after every possible name, as the empty string sorts before them.
const afterNames = "\xff"

// degree is the degree of an index's B-tree: about how many items a node has.
const degree = 32

// index keeps items by key, in order of size. Finding, adding or removing an item takes
// logarithmic time in the number of items with its key.
type index[T any] struct {
	trees map[indexKey]*btree.BTreeG[item[T]]
	// access lists the access modes in use, by key without them, the fewest modes first.
	access    map[indexKey][]volume.Access
	positions map[string]position
}

func newIndex[T any]() *index[T] {
	return &index[T]{trees: map[indexKey]*btree.BTreeG[item[T]]{}, access: map[indexKey][]volume.Access{}, positions: map[string]position{}}
}

// put stores an item, and removes it from its earlier place.
func (x *index[T]) put(name string, on indexKey, size resource.Quantity, it T) {
	if at, ok := x.positions[name]; !ok || at.key != on || at.size.Cmp(size) != 0 {
		x.remove(name)
	}
	items, known := x.trees[on]
	if !known {
		items = btree.NewG(degree, less[T])
		x.trees[on] = items
		sets := append(x.access[on.withoutAccess()], on.access)
		slices.SortFunc(sets, func(a, b volume.Access) int {
			return cmp.Or(cmp.Compare(a.Len(), b.Len()), cmp.Compare(a, b))
		})
		x.access[on.withoutAccess()] = sets
	}
	items.ReplaceOrInsert(item[T]{size: size, name: name, value: it})
	x.positions[name] = position{key: on, size: size}
}

// remove removes an item if it is there.
func (x *index[T]) remove(name string) {
	at, ok := x.positions[name]
	if !ok {
		return
	}
	delete(x.positions, name)
	items := x.trees[at.key]
	items.Delete(item[T]{size: at.size, name: name})
	if items.Len() > 0 {
		return
	}
	delete(x.trees, at.key)
	kind := at.key.withoutAccess()
	x.access[kind] = slices.DeleteFunc(x.access[kind], func(a volume.Access) bool { return a == at.key.access })
	if len(x.access[kind]) == 0 {
		delete(x.access, kind)
	}
}

func (x *index[T]) has(name string) bool {
	_, ok := x.positions[name]
	return ok
}

// get returns an item if it is there.
func (x *index[T]) get(name string) (it T, ok bool) {
	at, ok := x.positions[name]
	if !ok {
		return it, false
	}
	found, ok := x.trees[at.key].Get(item[T]{size: at.size, name: name})
	return found.value, ok
}

// smallest returns the smallest volume that fits a claim, nil for none. Volumes with the fewest
// access modes come first.
func smallest(free *index[*corev1.PersistentVolume], claim *corev1.PersistentVolumeClaim, selector labels.Selector) *corev1.PersistentVolume {
	wanted, request := indexKeyOfClaim(claim), volume.Request(claim)
	on := wanted
	for _, access := range free.access[wanted.withoutAccess()] {
		if !access.Has(wanted.access) {
			continue
		}
		on.access = access
		var fits *corev1.PersistentVolume
		free.trees[on].AscendGreaterOrEqual(item[*corev1.PersistentVolume]{size: request}, func(candidate item[*corev1.PersistentVolume]) bool {
			if volume.Match(candidate.value, claim, selector) == volume.Fits {
				fits = candidate.value
			}
			return fits == nil
		})
		if fits != nil {
			return fits
		}
	}
	return nil
}

// waitingClaim is a claim that seeks a volume, with its selector parsed once, as it is used for each
// volume that becomes free. A selector that cannot be parsed is nil and selects none.
type waitingClaim struct {
	claim    *corev1.PersistentVolumeClaim
	selector labels.Selector
}

func waitingClaimOf(claim *corev1.PersistentVolumeClaim) waitingClaim {
	selector, err := volume.Selector(claim)
	if err != nil {
		selector = nil
	}
	return waitingClaim{claim: claim, selector: selector}
}

func (s waitingClaim) selects(v *corev1.PersistentVolume) bool {
	return s.selector != nil && s.selector.Matches(labels.Set(v.Labels))
}

// largest returns the largest waiting claim that a free volume fits, nil for none.
func largest(waiting *index[waitingClaim], v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	capacity := volume.Capacity(v)
	if capacity == nil {
		return nil
	}
	var best *item[waitingClaim]
	has := indexKeyOfVolume(v)
	on := has
	for _, access := range waiting.access[has.withoutAccess()] {
		if !has.access.Has(access) {
			continue
		}
		on.access = access
		waiting.trees[on].DescendLessOrEqual(item[waitingClaim]{size: *capacity, name: afterNames}, func(candidate item[waitingClaim]) bool {
			if best != nil && candidate.size.Cmp(best.size) <= 0 {
				return false
			}
			if candidate.value.selects(v) {
				best = &candidate
				return false
			}
			return true
		})
	}
	if best == nil {
		return nil
	}
	return best.value.claim
}
