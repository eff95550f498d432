package jinja

import (
	"reflect"
)

// maxRange is how many items a range may have, the same as in Jinja's sandbox.
const maxRange = 100_000

func makeGlobals() map[string]any {
	return map[string]any{
		"range":     &builtin{"range", makeRange},
		"dict":      &builtin{"dict", func(e *evaluator, a *args) any { return e.makeDict("dict", a) }},
		"namespace": &builtin{"namespace", func(e *evaluator, a *args) any { return &namespace{e.makeDict("namespace", a)} }},
		"cycler":    &builtin{"cycler", makeCycler},
		"joiner":    &builtin{"joiner", makeJoiner},
	}
}

func makeRange(e *evaluator, a *args) any {
	sig := takes(1, "start", "stop", "step")
	v := sig.bind("range", a)
	for _, n := range v {
		if c := classOf(n); n != absent && c != smallInt && c != bigInt {
			fail(KindType, "'%s' object cannot be interpreted as an integer", typeName(norm(n)))
		}
	}
	r := rangeValue{step: 1}
	if v[1] == absent {
		v[0], v[1] = 0, v[0]
	}
	r.start, r.stop = rangeInt(v[0]), rangeInt(v[1])
	if v[2] != absent {
		r.step = rangeInt(v[2])
	}
	switch {
	case r.step == 0:
		fail(KindValue, "range() arg 3 must not be zero")
	case r.step > 0 && r.stop > r.start:
		r.n = (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.stop < r.start:
		r.n = (r.start-r.stop-1)/-r.step + 1
	}
	if r.n > maxRange {
		fail(KindLimit, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return r
}

// rangeInt reads a bound of a range, cut so that differences cannot overflow.
func rangeInt(v any) int {
	const far = 1 << 61
	if b, ok := v.(bool); ok {
		return toSmall(b)
	}
	if n, ok := v.(int); ok {
		return min(max(n, -far), far)
	}
	return toBig(v).Sign() * far
}

// makeDict is dict(mapping or pairs, **names).
func (e *evaluator) makeDict(name string, a *args) *dict {
	if len(a.pos) > 1 {
		fail(KindType, "%s expected at most 1 argument, got %d", name, len(a.pos))
	}
	d := newDict(len(a.names))
	if len(a.pos) == 1 {
		e.fillDict(d, norm(a.pos[0]))
	}
	for i, key := range a.names {
		e.items(4)
		d.set(e, key, a.values[i])
	}
	return d
}

func (e *evaluator) fillDict(d *dict, from any) {
	mustDefined(from)
	if m, ok := asMapping(from); ok {
		keys, values := m.pairs()
		e.items(4 * len(keys))
		for i, k := range keys {
			d.set(e, k, values[i])
		}
		return
	}
	next := e.iterate(from)
	for item, ok := next(); ok; item, ok = next() {
		if _, ok := e.iterable(item); !ok {
			fail(KindType, "cannot convert dictionary update sequence element to a sequence")
		}
		pair := e.collect(item)
		if len(pair) != 2 {
			fail(KindValue, "dictionary update sequence element has length %d; 2 is required", len(pair))
		}
		e.items(4)
		d.set(e, pair[0], pair[1])
	}
}

func makeCycler(e *evaluator, a *args) any {
	if len(a.names) > 0 {
		fail(KindType, "cycler() takes no keyword arguments")
	}
	if len(a.pos) == 0 {
		fail(KindRuntime, "at least one item has to be provided")
	}
	return &cycler{items: a.pos}
}

func makeJoiner(e *evaluator, a *args) any {
	sig := named(0, "sep")
	return &joiner{sep: orElse(sig.bind("joiner", a)[0], ", ")}
}

// sameMap reports whether two maps are one and the same; maps cannot be compared otherwise.
func sameMap(a, b map[string]any) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}
