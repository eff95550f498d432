package jinja

import "math/big"

// testDef is a test, what stands after "is". A filter or other test may use it by name.
type testDef struct {
	name string
	sig  signature
	test func(e *evaluator, v any, a []any) bool
}

func (t *testDef) apply(e *evaluator, v any, a *args) bool {
	if len(t.sig.params) == 0 && len(a.pos) == 0 && len(a.names) == 0 {
		return t.test(e, v, nil)
	}
	return t.test(e, v, t.sig.bind(t.name, a))
}

func makeTests() map[string]*testDef {
	tests := map[string]*testDef{}
	add := func(sig signature, test func(e *evaluator, v any, a []any) bool, names ...string) {
		for _, name := range names {
			tests[name] = &testDef{name, sig, test}
		}
	}
	none := signature{}
	one := func(name string) signature { return named(1, name) }

	for op, names := range map[comparison][]string{
		cmpEq: {"==", "eq", "equalto"}, cmpNe: {"!=", "ne"},
		cmpGt: {">", "gt", "greaterthan"}, cmpGe: {">=", "ge"},
		cmpLt: {"<", "lt", "lessthan"}, cmpLe: {"<=", "le"},
	} {
		add(takes(1, "other"), func(e *evaluator, v any, a []any) bool { return e.compare(op, norm(v), a[0]) }, names...)
	}
	add(one("seq"), func(e *evaluator, v any, a []any) bool { return e.contains(a[0], v) }, "in")
	add(one("other"), func(e *evaluator, v any, a []any) bool { return identical(norm(v), norm(a[0])) }, "sameas")

	add(none, func(e *evaluator, v any, _ []any) bool { return e.remainder(v, 2, 1) }, "odd")
	add(none, func(e *evaluator, v any, _ []any) bool { return e.remainder(v, 2, 0) }, "even")
	add(one("num"), func(e *evaluator, v any, a []any) bool { return e.remainder(v, a[0], 0) }, "divisibleby")

	add(none, func(e *evaluator, v any, _ []any) bool { _, u := v.(*undefined); return !u }, "defined")
	add(none, func(e *evaluator, v any, _ []any) bool { _, u := v.(*undefined); return u }, "undefined")
	add(none, func(e *evaluator, v any, _ []any) bool { return v == nil }, "none")
	add(none, func(e *evaluator, v any, _ []any) bool { return v == true }, "true")
	add(none, func(e *evaluator, v any, _ []any) bool { return v == false }, "false")
	add(none, func(e *evaluator, v any, _ []any) bool { _, ok := v.(bool); return ok }, "boolean")
	add(none, func(e *evaluator, v any, _ []any) bool { return isInteger(norm(v)) }, "integer")
	add(none, func(e *evaluator, v any, _ []any) bool { _, ok := norm(v).(float64); return ok }, "float")
	add(none, func(e *evaluator, v any, _ []any) bool { return isNumber(norm(v)) }, "number")
	add(none, func(e *evaluator, v any, _ []any) bool { _, ok := v.(string); return ok }, "string")
	add(none, func(e *evaluator, v any, _ []any) bool { _, ok := asMapping(norm(v)); return ok }, "mapping")
	add(none, func(e *evaluator, v any, _ []any) bool { return isSequence(norm(v)) }, "sequence")
	add(none, func(e *evaluator, v any, _ []any) bool { _, ok := e.iterable(v); return ok }, "iterable")
	add(none, func(e *evaluator, v any, _ []any) bool { return isCallable(v) }, "callable")
	add(none, func(e *evaluator, v any, _ []any) bool { return cased(e.str(v), isLower, isUpper) }, "lower")
	add(none, func(e *evaluator, v any, _ []any) bool { return cased(e.str(v), isUpper, isLower) }, "upper")
	add(none, func(e *evaluator, v any, _ []any) bool { return false }, "escaped")

	exists := func(has func(name string) bool) func(e *evaluator, v any, _ []any) bool {
		return func(e *evaluator, v any, _ []any) bool {
			s, ok := v.(string)
			if !ok {
				e.hash(v, 0) // a value that cannot be a key is an error
			}
			return ok && has(s)
		}
	}
	add(none, exists(func(name string) bool { return filterTable[name] != nil }), "filter")
	add(none, exists(func(name string) bool { return tests[name] != nil }), "test")
	return tests
}

// remainder reports whether v % by == want.
func (e *evaluator) remainder(v, by any, want int) bool {
	return e.equal(e.binary(tokMod, norm(v), by), want, 0)
}

func isInteger(v any) bool {
	switch v.(type) {
	case int, *big.Int:
		return true
	}
	return false
}

func isSequence(v any) bool {
	switch v.(type) {
	case string, []any, tuple, *group, map[string]any, *dict, rangeValue, textBytes, *undefined:
		return true
	}
	return false
}

func isCallable(v any) bool {
	switch v.(type) {
	case *macro, *builtin, *method, *hostFunc, *joiner, *loopState, *blockRef, *undefined:
		return true
	}
	return false
}

// identical is Python's "is", as far as it means something for values.
func identical(a, b any) bool {
	if typeName(a) != typeName(b) {
		return false
	}
	switch x := a.(type) {
	case nil, bool, int, float64, string, textBytes:
		return a == b
	case *big.Int:
		y, ok := b.(*big.Int)
		return ok && x.Cmp(y) == 0
	case []any:
		y := b.([]any)
		return len(x) == len(y) && len(x) > 0 && &x[0] == &y[0]
	case tuple:
		y, ok := b.(tuple)
		return ok && len(x) == len(y) && (len(x) == 0 || &x[0] == &y[0])
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && sameMap(x, y)
	case *mapView, rangeValue, *undefined:
		return false
	}
	return a == b
}
