package bind

import (
	"cmp"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"tarn.dev/tarn/internal/volume"
)

// shelf is where things lie that differ in size only.
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

// item is one thing on a shelf, in order of size, then of name.
type item[T any] struct {
	size resource.Quantity
	name string
	it   T
}

func compare[T any](a, b item[T]) int {
	if by := a.size.Cmp(b.size); by != 0 {
		return by
	}
	return cmp.Compare(a.name, b.name)
}

// place is where an item was put.
type place struct {
	shelf shelf
	size  resource.Quantity
}

// store keeps items by shelf, in order of size. Finding, putting and taking one costs
// the logarithm of what is on its shelf, and moving pointers.
type store[T any] struct {
	shelves map[shelf][]item[T]
	// access are the access modes of the shelves there are of a kind, the fewest
	// modes first.
	access map[shelf][]volume.Access
	places map[string]place
}

func newStore[T any]() *store[T] {
	return &store[T]{shelves: map[shelf][]item[T]{}, access: map[shelf][]volume.Access{}, places: map[string]place{}}
}

// put lays an item where it belongs, taking it from where it was.
func (s *store[T]) put(name string, on shelf, size resource.Quantity, it T) {
	if at, ok := s.places[name]; ok && at.shelf == on && at.size.Cmp(size) == 0 {
		items := s.shelves[on]
		if i, found := find(items, item[T]{size: size, name: name}); found {
			items[i].it = it
			return
		}
	}
	s.take(name)
	items, known := s.shelves[on]
	i, _ := find(items, item[T]{size: size, name: name})
	s.shelves[on] = slices.Insert(items, i, item[T]{size: size, name: name, it: it})
	s.places[name] = place{shelf: on, size: size}
	if !known {
		sets := append(s.access[on.kind()], on.access)
		slices.SortFunc(sets, func(a, b volume.Access) int {
			return cmp.Or(cmp.Compare(a.Len(), b.Len()), cmp.Compare(a, b))
		})
		s.access[on.kind()] = sets
	}
}

// take removes an item, if it is there.
func (s *store[T]) take(name string) {
	at, ok := s.places[name]
	if !ok {
		return
	}
	delete(s.places, name)
	items := s.shelves[at.shelf]
	i, found := find(items, item[T]{size: at.size, name: name})
	if !found {
		return
	}
	if items = slices.Delete(items, i, i+1); len(items) > 0 {
		s.shelves[at.shelf] = items
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

// get gives an item, if it is there.
func (s *store[T]) get(name string) (it T, ok bool) {
	at, ok := s.places[name]
	if !ok {
		return it, false
	}
	items := s.shelves[at.shelf]
	i, found := find(items, item[T]{size: at.size, name: name})
	if !found {
		return it, false
	}
	return items[i].it, true
}

func find[T any](items []item[T], wanted item[T]) (int, bool) {
	return slices.BinarySearchFunc(items, wanted, compare[T])
}

// smallest gives the smallest volume that fits a claim, from those with the fewest
// access modes that have one; nil for none.
func smallest(free *store[*corev1.PersistentVolume], claim *corev1.PersistentVolumeClaim, selector labels.Selector) *corev1.PersistentVolume {
	wanted, request := shelfOfClaim(claim), volume.Request(claim)
	on := wanted
	for _, access := range free.access[wanted.kind()] {
		if !access.Has(wanted.access) {
			continue
		}
		on.access = access
		items := free.shelves[on]
		from := sort.Search(len(items), func(i int) bool { return items[i].size.Cmp(request) >= 0 })
		for _, candidate := range items[from:] {
			if volume.Match(candidate.it, claim, selector) == volume.Fits {
				return candidate.it
			}
		}
	}
	return nil
}

// largest gives the claim that asks for most of those a free volume fits; nil for
// none.
func largest(waiting *store[*corev1.PersistentVolumeClaim], v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	capacity := volume.Capacity(v)
	if capacity == nil {
		return nil
	}
	var best *item[*corev1.PersistentVolumeClaim]
	has := shelfOfVolume(v)
	on := has
	for _, access := range waiting.access[has.kind()] {
		if !has.access.Has(access) {
			continue
		}
		on.access = access
		items := waiting.shelves[on]
		end := sort.Search(len(items), func(i int) bool { return items[i].size.Cmp(*capacity) > 0 })
		for i := end - 1; i >= 0; i-- {
			if best != nil && items[i].size.Cmp(best.size) <= 0 {
				break
			}
			if selects(items[i].it, v) {
				best = &items[i]
				break
			}
		}
	}
	if best == nil {
		return nil
	}
	return best.it
}

// selects says whether a claim's selector lets it have a volume.
func selects(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	if claim.Spec.Selector == nil {
		return true
	}
	selector, err := volume.Selector(claim)
	return err == nil && selector.Matches(labels.Set(v.Labels))
}
