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

// shelf is the key of items that differ only in size, name and labels.
type shelf struct {
	class, attributes string
	mode              corev1.PersistentVolumeMode
	access            volume.Access
}

// kind is a shelf without its access modes.
func (s shelf) kind() shelf { return shelf{class: s.class, attributes: s.attributes, mode: s.mode} }

func shelfOfVolume(v *corev1.PersistentVolume) shelf {
	return shelf{
		class: volume.ClassOfVolume(v), attributes: volume.AttributesClassOfVolume(v),
		mode: volume.ModeOfVolume(v), access: volume.AccessOf(v.Spec.AccessModes),
	}
}

func shelfOfClaim(c *corev1.PersistentVolumeClaim) shelf {
	return shelf{
		class: volume.ClassOf(c), attributes: volume.AttributesClassOf(c),
		mode: volume.ModeOf(c), access: volume.AccessOf(c.Spec.AccessModes),
	}
}

// item is one entry of a shelf, sorted by size, then by name.
type item[T any] struct {
	size resource.Quantity
	name string
	it   T
}

func inOrder[T any](a, b item[T]) bool {
	if by := a.size.Cmp(b.size); by != 0 {
		return by < 0
	}
	return a.name < b.name
}

// place is where an item is stored.
type place struct {
	shelf shelf
	size  resource.Quantity
}

// afterNames sorts after every possible name, as the empty string sorts before them.
const afterNames = "\xff"

// degree is the degree of a shelf's B-tree: about how many items a node has.
const degree = 32

// store keeps items by shelf, in order of size. Finding, adding or removing an item takes
// logarithmic time in the length of its shelf.
type store[T any] struct {
	shelves map[shelf]*btree.BTreeG[item[T]]
	// access lists the access modes of the existing shelves of a kind, the fewest modes first.
	access map[shelf][]volume.Access
	places map[string]place
}

func newStore[T any]() *store[T] {
	return &store[T]{shelves: map[shelf]*btree.BTreeG[item[T]]{}, access: map[shelf][]volume.Access{}, places: map[string]place{}}
}

// put stores an item, and removes it from its earlier place.
func (s *store[T]) put(name string, on shelf, size resource.Quantity, it T) {
	if at, ok := s.places[name]; !ok || at.shelf != on || at.size.Cmp(size) != 0 {
		s.take(name)
	}
	items, known := s.shelves[on]
	if !known {
		items = btree.NewG(degree, inOrder[T])
		s.shelves[on] = items
		sets := append(s.access[on.kind()], on.access)
		slices.SortFunc(sets, func(a, b volume.Access) int {
			return cmp.Or(cmp.Compare(a.Len(), b.Len()), cmp.Compare(a, b))
		})
		s.access[on.kind()] = sets
	}
	items.ReplaceOrInsert(item[T]{size: size, name: name, it: it})
	s.places[name] = place{shelf: on, size: size}
}

// take removes an item if it is there.
func (s *store[T]) take(name string) {
	at, ok := s.places[name]
	if !ok {
		return
	}
	delete(s.places, name)
	items := s.shelves[at.shelf]
	items.Delete(item[T]{size: at.size, name: name})
	if items.Len() > 0 {
		return
	}
	delete(s.shelves, at.shelf)
	kind := at.shelf.kind()
	s.access[kind] = slices.DeleteFunc(s.access[kind], func(a volume.Access) bool { return a == at.shelf.access })
	if len(s.access[kind]) == 0 {
		delete(s.access, kind)
	}
}

func (s *store[T]) has(name string) bool {
	_, ok := s.places[name]
	return ok
}

// get returns an item if it is there.
func (s *store[T]) get(name string) (it T, ok bool) {
	at, ok := s.places[name]
	if !ok {
		return it, false
	}
	found, ok := s.shelves[at.shelf].Get(item[T]{size: at.size, name: name})
	return found.it, ok
}

// smallest returns the smallest volume that fits a claim, nil for none. Volumes with the fewest
// access modes come first.
func smallest(free *store[*corev1.PersistentVolume], claim *corev1.PersistentVolumeClaim, selector labels.Selector) *corev1.PersistentVolume {
	wanted, request := shelfOfClaim(claim), volume.Request(claim)
	on := wanted
	for _, access := range free.access[wanted.kind()] {
		if !access.Has(wanted.access) {
			continue
		}
		on.access = access
		var fits *corev1.PersistentVolume
		free.shelves[on].AscendGreaterOrEqual(item[*corev1.PersistentVolume]{size: request}, func(candidate item[*corev1.PersistentVolume]) bool {
			if volume.Match(candidate.it, claim, selector) == volume.Fits {
				fits = candidate.it
			}
			return fits == nil
		})
		if fits != nil {
			return fits
		}
	}
	return nil
}

// seeker is a claim that seeks a volume, with its selector parsed once, as it is used for each
// volume that becomes free. A selector that cannot be parsed is nil and selects none.
type seeker struct {
	claim    *corev1.PersistentVolumeClaim
	selector labels.Selector
}

func seekerOf(claim *corev1.PersistentVolumeClaim) seeker {
	selector, err := volume.Selector(claim)
	if err != nil {
		selector = nil
	}
	return seeker{claim: claim, selector: selector}
}

func (s seeker) selects(v *corev1.PersistentVolume) bool {
	return s.selector != nil && s.selector.Matches(labels.Set(v.Labels))
}

// largest returns the largest waiting claim that a free volume fits, nil for none.
func largest(waiting *store[seeker], v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	capacity := volume.Capacity(v)
	if capacity == nil {
		return nil
	}
	var best *item[seeker]
	has := shelfOfVolume(v)
	on := has
	for _, access := range waiting.access[has.kind()] {
		if !has.access.Has(access) {
			continue
		}
		on.access = access
		waiting.shelves[on].DescendLessOrEqual(item[seeker]{size: *capacity, name: afterNames}, func(candidate item[seeker]) bool {
			if best != nil && candidate.size.Cmp(best.size) <= 0 {
				return false
			}
			if candidate.it.selects(v) {
				best = &candidate
				return false
			}
			return true
		})
	}
	if best == nil {
		return nil
	}
	return best.it.claim
}
