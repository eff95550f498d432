package jinja

import (
	"math/rand/v2"
	"slices"
)

// listFilters are the filters over sequences and mappings.
func listFilters() []*filterDef {
	return []*filterDef{
		{name: "first", bound: filterFirst},
		{name: "last", bound: filterLast},
		{name: "random", bound: filterRandom},
		{name: "length", bound: func(e *evaluator, v any, _ []any) any { return e.length(v) }},
		{name: "list", bound: func(e *evaluator, v any, _ []any) any { return slices.Clip(e.collect(v)) }},
		{name: "reverse", bound: filterReverse},
		{name: "join", sig: named(0, "d", "attribute"), bound: filterJoin},
		{name: "sort", sig: named(0, "reverse", "case_sensitive", "attribute"), bound: filterSort},
		{name: "unique", sig: named(0, "case_sensitive", "attribute"), bound: filterUnique},
		{name: "min", sig: named(0, "case_sensitive", "attribute"), bound: func(e *evaluator, v any, a []any) any { return e.extreme(v, a, cmpLt) }},
		{name: "max", sig: named(0, "case_sensitive", "attribute"), bound: func(e *evaluator, v any, a []any) any { return e.extreme(v, a, cmpGt) }},
		{name: "sum", sig: named(0, "attribute", "start"), bound: filterSum},
		{name: "groupby", sig: named(1, "attribute", "default", "case_sensitive"), bound: filterGroupBy},
		{name: "batch", sig: named(1, "linecount", "fill_with"), bound: filterBatch},
		{name: "slice", sig: named(1, "slices", "fill_with"), bound: filterSlice},
		{name: "dictsort", sig: named(0, "case_sensitive", "by", "reverse"), bound: filterDictSort},
		{name: "items", bound: filterItems},
	}
}

func filterFirst(e *evaluator, v any, _ []any) any {
	if item, ok := e.iterate(v)(); ok {
		return item
	}
	return &undefined{message: "No first item, sequence was empty."}
}

// reversible returns the items of what Python's reversed() accepts.
func (e *evaluator) reversible(v any) ([]any, bool) {
	switch norm(v).(type) {
	case *generator, *loopState:
		return nil, false
	}
	if _, ok := e.iterable(v); !ok {
		return nil, false
	}
	return e.collect(v), true
}

func filterLast(e *evaluator, v any, _ []any) any {
	items, ok := e.reversible(v)
	if !ok {
		fail(KindType, "'%s' object is not reversible", typeName(norm(v)))
	}
	if len(items) == 0 {
		return &undefined{message: "No last item, sequence was empty."}
	}
	return items[len(items)-1]
}

func filterRandom(e *evaluator, v any, _ []any) any {
	n := e.length(v)
	if n == 0 {
		return &undefined{message: "No random item, sequence was empty."}
	}
	item, ok := e.element(norm(v), rand.IntN(n))
	if !ok {
		fail(KindType, "'%s' object is not subscriptable", typeName(norm(v)))
	}
	return item
}

func filterReverse(e *evaluator, v any, _ []any) any {
	if s, ok := v.(string); ok {
		r, _ := e.sliceString(s, &sliceValue{step: -1})
		return r
	}
	items, ok := e.reversible(v)
	if !ok {
		if _, isIterable := e.iterable(v); !isIterable {
			fail(KindRuntime, "argument must be iterable")
		}
		items = slices.Clone(e.collect(v))
		slices.Reverse(items)
		return items
	}
	i := len(items)
	return &generator{next: func() (any, bool) {
		if i == 0 {
			return nil, false
		}
		i--
		return items[i], true
	}}
}

func filterJoin(e *evaluator, v any, a []any) any {
	sep := e.str(orElse(a[0], ""))
	p := e.splitPath(a[1])
	next := e.iterate(v)
	var parts []string
	size := 0
	for item, ok := next(); ok; item, ok = next() {
		s := e.str(e.get(p, item, nil))
		e.alloc(anyBytes)
		parts = append(parts, s)
		size += len(s) + len(sep)
		e.checkSize(size)
	}
	return e.joinStrings(parts, sep, size)
}

// filterSort sorts by one or several attributes, separated by commas.
func filterSort(e *evaluator, v any, a []any) any {
	paths := []path{e.splitPath(a[2])}
	if s, ok := a[2].(string); ok {
		paths = paths[:0]
		for _, part := range e.splitOn(s, ",") {
			paths = append(paths, e.splitPath(part))
		}
	}
	items := e.collect(v)
	keys := make([]any, len(items))
	e.items(len(items) * (1 + len(paths)))
	for i, item := range items {
		key := make([]any, len(paths))
		for j, p := range paths {
			key[j] = e.fold(e.get(p, item, nil), flag(a[1]))
		}
		keys[i] = key
	}
	return e.sortBy(items, keys, flag(a[0]))
}

func (e *evaluator) splitOn(s, sep string) []string {
	var out []string
	for _, part := range strSplit(e, s, []any{sep, absent}).([]any) {
		out = append(out, part.(string))
	}
	return out
}

func filterUnique(e *evaluator, v any, a []any) any {
	p := e.splitPath(a[1])
	return e.lazy(v, func(next func() (any, bool)) func() (any, bool) {
		seen := map[any]bool{}
		return func() (any, bool) {
			for {
				item, ok := next()
				if !ok {
					return nil, false
				}
				h := e.hash(e.fold(e.get(p, item, nil), flag(a[0])), 0)
				if !seen[h] {
					e.alloc(4 * anyBytes)
					seen[h] = true
					return item, true
				}
			}
		}
	})
}

func (e *evaluator) extreme(v any, a []any, op comparison) any {
	p := e.splitPath(a[1])
	next := e.iterate(v)
	best, ok := next()
	if !ok {
		return &undefined{message: "No aggregated item, sequence was empty."}
	}
	key := func(item any) any { return e.fold(e.get(p, item, nil), flag(a[0])) }
	bestKey := key(best)
	for item, ok := next(); ok; item, ok = next() {
		if k := key(item); e.ordered(op, k, bestKey, 0) {
			best, bestKey = item, k
		}
	}
	return best
}

func filterSum(e *evaluator, v any, a []any) any {
	p := e.splitPath(a[0])
	total := orElse(a[1], 0)
	next := e.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		total = e.binary(tokAdd, total, e.get(p, item, nil))
	}
	return total
}

func filterGroupBy(e *evaluator, v any, a []any) any {
	p := e.splitPath(a[0])
	def := a[1]
	if def == absent {
		def = nil
	}
	items := e.collect(v)
	keys := make([]any, len(items))
	pairs := make([]any, len(items))
	e.items(4 * len(items))
	for i, item := range items {
		keys[i] = e.fold(e.get(p, item, def), flag(a[2]))
		pairs[i] = tuple{keys[i], item}
	}
	var out []any
	var current *group
	var currentKey any
	for _, pair := range e.sortBy(pairs, keys, false) {
		key, item := pair.(tuple)[0], pair.(tuple)[1]
		if current != nil && e.equal(currentKey, key, 0) {
			current.items = append(current.items.([]any), item)
			continue
		}
		current, currentKey = &group{e.get(p, item, def), []any{item}}, key
		out = append(out, current)
	}
	return out
}

func filterBatch(e *evaluator, v any, a []any) any {
	fill := a[1]
	count := norm(a[0])
	return e.lazy(v, func(next func() (any, bool)) func() (any, bool) {
		var held []any
		done := false
		return func() (any, bool) {
			row := held
			held = nil
			for !done {
				item, ok := next()
				if !ok {
					done = true
					break
				}
				e.alloc(anyBytes)
				if isNumber(count) && numericOrder(count, len(row)) == 0 {
					held = []any{item}
					return row, true
				}
				row = append(row, item)
			}
			if len(row) == 0 {
				return nil, false
			}
			if given(fill) {
				if n := toIndex(count, "batch") - len(row); n > 0 {
					e.pad(n, anyBytes)
					for range n {
						row = append(row, fill)
					}
				}
			}
			return row, true
		}
	})
}

func filterSlice(e *evaluator, v any, a []any) any {
	items := e.collect(v)
	n := toIndex(a[0], "slice")
	if n == 0 {
		fail(KindArithmetic, "integer division or modulo by zero")
	}
	if n < 0 {
		return &generator{next: func() (any, bool) { return nil, false }}
	}
	per, extra := len(items)/n, len(items)%n
	number, from := 0, 0
	return &generator{next: func() (any, bool) {
		if number == n {
			return nil, false
		}
		to := from + per
		if number < extra {
			to++
		}
		e.items(to - from + 1)
		row := slices.Clone(items[from:to])
		if given(a[1]) && number >= extra {
			row = append(row, a[1])
		}
		if row == nil {
			row = []any{}
		}
		number++
		from = to
		return row, true
	}}
}

func filterDictSort(e *evaluator, v any, a []any) any {
	by := 0
	switch orElse(a[1], "key") {
	case "key":
	case "value":
		by = 1
	default:
		fail(KindRuntime, "You can only sort by either \"key\" or \"value\"")
	}
	m, ok := asMapping(norm(v))
	if !ok {
		mustDefined(v)
		fail(KindType, "dictsort takes a mapping, not %s", typeName(norm(v)))
	}
	pairs := e.viewItems(&mapView{"items", m})
	keys := make([]any, len(pairs))
	e.items(len(keys))
	for i, p := range pairs {
		keys[i] = e.fold(p.(tuple)[by], flag(a[0]))
	}
	return e.sortBy(pairs, keys, flag(a[2]))
}

func filterItems(e *evaluator, v any, _ []any) any {
	if _, ok := v.(*undefined); ok {
		return &generator{next: func() (any, bool) { return nil, false }}
	}
	m, ok := asMapping(norm(v))
	if !ok {
		fail(KindType, "Can only get item pairs from a mapping.")
	}
	next := e.iterate(&mapView{"items", m})
	return &generator{next: next}
}
