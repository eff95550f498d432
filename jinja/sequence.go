package jinja

import (
	"unicode/utf8"
)

// iterable reports whether a value can be looped over, without starting to.
func (e *evaluator) iterable(v any) (any, bool) {
	v = norm(v)
	switch v.(type) {
	case []any, tuple, *group, string, *dict, map[string]any, *mapView, rangeValue, *generator, *undefined, textBytes, *loopState:
		return v, true
	}
	return v, false
}

// iterate returns a function that yields the items of v one by one.
func (e *evaluator) iterate(v any) func() (any, bool) {
	v, ok := e.iterable(v)
	if !ok {
		fail(KindType, "'%s' object is not iterable", typeName(v))
	}
	switch v := v.(type) {
	case string:
		return e.iterateString(v)
	case *undefined:
		return func() (any, bool) { return nil, false }
	case rangeValue:
		i := 0
		return func() (any, bool) {
			e.step()
			if i >= v.n {
				return nil, false
			}
			i++
			return v.start + (i-1)*v.step, true
		}
	case *generator:
		return func() (any, bool) {
			e.step()
			return v.next()
		}
	case *loopState:
		return v.next
	case textBytes:
		i := 0
		return func() (any, bool) {
			if i >= len(v) {
				return nil, false
			}
			i++
			return int(v[i-1]), true
		}
	}
	items, ok := sequence(v)
	if !ok {
		items = e.collect(v)
	}
	i := 0
	return func() (any, bool) {
		e.step()
		if i >= len(items) {
			return nil, false
		}
		i++
		return norm(items[i-1]), true
	}
}

func (e *evaluator) iterateString(s string) func() (any, bool) {
	return func() (any, bool) {
		e.step()
		if s == "" {
			return nil, false
		}
		_, size := utf8.DecodeRuneInString(s)
		c := s[:size]
		s = s[size:]
		return c, true
	}
}

// collect is Python's list(v); the result must not be changed.
func (e *evaluator) collect(v any) []any {
	if items, ok := sequence(v); ok {
		e.steps(len(items))
		for _, item := range items {
			if foreign(item) {
				return normAll(items)
			}
		}
		return items
	}
	switch v := v.(type) {
	case *dict:
		e.items(v.size())
		return v.keys
	case map[string]any:
		e.items(len(v))
		keys, _ := plainMap(v).pairs()
		return keys
	case *mapView:
		e.items(v.of.size())
		return e.viewItems(v)
	case rangeValue:
		e.items(v.n)
		out := make([]any, v.n)
		for i := range out {
			out[i] = v.start + i*v.step
		}
		return out
	}
	var out []any
	next := e.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		e.alloc(anyBytes)
		out = append(out, item)
	}
	return out
}

// foreign reports whether norm would change a value.
func foreign(v any) bool {
	switch v.(type) {
	case nil, bool, int, float64, string, []any, map[string]any, tuple, *dict:
		return false
	}
	return true
}

func normAll(items []any) []any {
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = norm(item)
	}
	return out
}

func (e *evaluator) viewItems(v *mapView) []any {
	keys, values := v.of.pairs()
	switch v.kind {
	case "keys":
		return keys
	case "values":
		return values
	}
	e.alloc(len(keys) * 4 * anyBytes)
	out := make([]any, len(keys))
	for i := range keys {
		out[i] = tuple{keys[i], values[i]}
	}
	return out
}

// length is Python's len().
func (e *evaluator) length(v any) int {
	switch v := norm(v).(type) {
	case string:
		e.steps(len(v) / bytesPerStep)
		return runeLen(v)
	case textBytes:
		return len(v)
	case *undefined:
		return 0
	case rangeValue:
		return v.n
	case *mapView:
		return v.of.size()
	case *loopState:
		return v.length()
	default:
		if items, ok := sequence(v); ok {
			return len(items)
		}
		if m, ok := asMapping(v); ok {
			return m.size()
		}
	}
	fail(KindType, "object of type '%s' has no len()", typeName(norm(v)))
	return 0
}

// indexOf returns the position of n in the range, or -1.
func (r rangeValue) indexOf(n int) int {
	d := n - r.start
	if r.step == 0 || d%r.step != 0 || d/r.step < 0 || d/r.step >= r.n {
		return -1
	}
	return d / r.step
}

// sliceValue is an evaluated a:b:c; nil parts are absent.
type sliceValue struct{ start, stop, step any }

// bounds resolves a slice for a sequence of n items: the first index, the step
// and how many items. ok is false where a part is not an integer.
func (s *sliceValue) bounds(n int) (start, step, count int, ok bool) {
	step = 1
	if s.step != nil {
		if step, ok = sliceIndex(s.step); !ok {
			return
		}
		if step == 0 {
			fail(KindValue, "slice step cannot be zero")
		}
		step = min(max(step, -1<<31), 1<<31)
	}
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}
	clamp := func(v any, absent int) (int, bool) {
		if v == nil {
			return absent, true
		}
		i, ok := sliceIndex(v)
		if i < 0 {
			i += n
		}
		return min(max(i, low), high), ok
	}
	first, last := low, high
	if step < 0 {
		first, last = high, low
	}
	start, ok = clamp(s.start, first)
	if !ok {
		return
	}
	stop, ok := clamp(s.stop, last)
	if step > 0 && stop > start {
		count = (stop - start + step - 1) / step
	} else if step < 0 && stop < start {
		count = (start - stop - step - 1) / -step
	}
	return start, step, count, ok
}

// sliceIndex reads an integer, cut to a range that cannot overflow.
func sliceIndex(v any) (int, bool) {
	const far = 1 << 40
	switch classOf(v) {
	case smallInt:
		return min(max(toSmall(v), -far), far), true
	case bigInt:
		return toBig(v).Sign() * far, true
	}
	return 0, false
}

// slice is v[a:b:c]; ok is false where Python raises a TypeError.
func (e *evaluator) slice(v any, s *sliceValue) (any, bool) {
	switch v := v.(type) {
	case string:
		return e.sliceString(v, s)
	case rangeValue:
		start, step, n, ok := s.bounds(v.n)
		if !ok {
			return nil, false
		}
		r := rangeValue{start: v.start + start*v.step, step: v.step * step, n: n}
		r.stop = r.start + n*r.step
		return r, true
	case textBytes:
		start, step, n, ok := s.bounds(len(v))
		if !ok {
			return nil, false
		}
		out := make([]byte, n)
		for i := range out {
			out[i] = v[start+i*step]
		}
		return textBytes(out), true
	}
	items, isSeq := sequence(v)
	if !isSeq {
		return nil, false
	}
	start, step, n, ok := s.bounds(len(items))
	if !ok {
		return nil, false
	}
	e.items(n)
	out := make([]any, n)
	for i := range out {
		out[i] = norm(items[start+i*step])
	}
	if _, isList := v.([]any); isList {
		return out, true
	}
	return tuple(out), true
}

func (e *evaluator) sliceString(v string, s *sliceValue) (any, bool) {
	e.steps(len(v) / bytesPerStep)
	if isASCII(v) {
		start, step, n, ok := s.bounds(len(v))
		if !ok {
			return nil, false
		}
		if step == 1 {
			return v[start : start+n], true
		}
		e.text(n)
		out := make([]byte, n)
		for i := range out {
			out[i] = v[start+i*step]
		}
		return string(out), true
	}
	e.text(4 * len(v))
	runes := []rune(v)
	start, step, n, ok := s.bounds(len(runes))
	if !ok {
		return nil, false
	}
	out := make([]rune, n)
	for i := range out {
		out[i] = runes[start+i*step]
	}
	return string(out), true
}

// element is v[i] for a sequence; ok is false out of range or where v has no indices.
func (e *evaluator) element(v any, i int) (any, bool) {
	pick := func(n int) bool {
		if i < 0 {
			i += n
		}
		return i >= 0 && i < n
	}
	switch v := v.(type) {
	case string:
		e.steps(len(v) / bytesPerStep)
		if !pick(runeLen(v)) {
			return nil, false
		}
		if isASCII(v) {
			return v[i : i+1], true
		}
		for _, r := range v {
			if i == 0 {
				return string(r), true
			}
			i--
		}
	case rangeValue:
		if pick(v.n) {
			return v.start + i*v.step, true
		}
	case textBytes:
		if pick(len(v)) {
			return int(v[i]), true
		}
	default:
		if items, ok := sequence(v); ok && pick(len(items)) {
			return norm(items[i]), true
		}
	}
	return nil, false
}
