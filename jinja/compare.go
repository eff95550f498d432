package jinja

import (
	"math"
	"math/big"
	"slices"
	"strings"
)

type comparison uint8

const (
	cmpEq comparison = iota
	cmpNe
	cmpLt
	cmpLe
	cmpGt
	cmpGe
	cmpIn
	cmpNotIn
)

var comparisonNames = [...]string{cmpEq: "==", cmpNe: "!=", cmpLt: "<", cmpLe: "<=", cmpGt: ">", cmpGe: ">=", cmpIn: "in", cmpNotIn: "not in"}

func (e *evaluator) compare(op comparison, a, b any) bool {
	switch op {
	case cmpEq:
		return e.equal(a, b, 0)
	case cmpNe:
		return !e.equal(a, b, 0)
	case cmpIn:
		return e.contains(b, a)
	case cmpNotIn:
		return !e.contains(b, a)
	}
	return e.ordered(op, a, b, 0)
}

// equal is Python's ==.
func (e *evaluator) equal(a, b any, depth int) bool {
	e.checkDepth(depth)
	switch a := a.(type) {
	case string:
		s, ok := b.(string)
		if ok && len(a) == len(s) {
			e.steps(len(a) / bytesPerStep / 8)
		}
		return ok && a == s
	case nil:
		return b == nil
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case int, bool, float64, *big.Int:
		b = norm(b)
		e.chargeBig(a, b)
		return isNumber(b) && numericOrder(a, b) == 0
	case []any:
		other, ok := b.([]any)
		return ok && e.equalItems(a, other, depth)
	case tuple, *group:
		switch b.(type) {
		case tuple, *group:
			x, _ := sequence(a)
			y, _ := sequence(b)
			return e.equalItems(x, y, depth)
		}
		return false
	case *dict, map[string]any:
		x, _ := asMapping(a)
		y, ok := asMapping(b)
		return ok && e.equalMaps(x, y, depth)
	case textBytes, rangeValue:
		return e.equalSimple(a, b)
	case *mapView:
		other, ok := b.(*mapView)
		return ok && a.kind == other.kind && a.kind != "values" && e.equalItems(e.collect(a), e.collect(other), depth)
	}
	if n := norm(a); typeName(n) == "int" || typeName(n) == "float" || typeName(n) != typeName(a) {
		return e.equal(n, b, depth+1)
	}
	if typeName(a) != typeName(norm(b)) {
		return false
	}
	return a == b // pointers: the same thing or not
}

// chargeBig charges for looking at large integers.
func (e *evaluator) chargeBig(values ...any) {
	for _, v := range values {
		if b, ok := v.(*big.Int); ok {
			e.steps(b.BitLen() / 64)
		}
	}
}

func (e *evaluator) equalSimple(a, b any) bool {
	x, isRange := a.(rangeValue)
	y, bothRanges := b.(rangeValue)
	if isRange && bothRanges {
		return x.n == y.n && (x.n == 0 || x.start == y.start && (x.n == 1 || x.step == y.step))
	}
	s, isBytes := a.(textBytes)
	t, bothBytes := b.(textBytes)
	return isBytes && bothBytes && s == t
}

func (e *evaluator) equalItems(a, b []any, depth int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !e.equal(norm(a[i]), norm(b[i]), depth+1) {
			return false
		}
	}
	return true
}

func (e *evaluator) equalMaps(a, b mapping, depth int) bool {
	if a.size() != b.size() {
		return false
	}
	keys, values := a.pairs()
	e.steps(len(keys))
	for i, k := range keys {
		other, ok := b.get(e, k)
		if !ok || !e.equal(values[i], other, depth+1) {
			return false
		}
	}
	return true
}

// unordered is what numericOrder gives when a NaN is involved.
const unordered = 2

// numericOrder returns -1, 0 or 1, exactly also between integers and floats.
func numericOrder(a, b any) int {
	ca, cb := classOf(a), classOf(b)
	if ca == smallInt && cb == smallInt {
		x, y := toSmall(a), toSmall(b)
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	if ca == floating && cb == floating {
		return floatOrder(a.(float64), b.(float64))
	}
	if ca == floating {
		return -numericOrderFloat(b, a.(float64))
	}
	if cb == floating {
		return numericOrderFloat(a, b.(float64))
	}
	return toBig(a).Cmp(toBig(b))
}

func floatOrder(x, y float64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	case x == y:
		return 0
	}
	return unordered
}

func numericOrderFloat(n any, f float64) int {
	const exact = 1 << 53
	if i, ok := n.(int); ok && i > -exact && i < exact {
		return floatOrder(float64(i), f)
	}
	switch {
	case math.IsNaN(f):
		return unordered
	case math.IsInf(f, 1):
		return -1
	case math.IsInf(f, -1):
		return 1
	}
	return new(big.Float).SetInt(toBig(n)).Cmp(big.NewFloat(f))
}

// ordered is Python's <, <=, > and >=.
func (e *evaluator) ordered(op comparison, a, b any, depth int) bool {
	e.checkDepth(depth)
	mustDefined(a)
	mustDefined(b)
	a, b = norm(a), norm(b)
	if isNumber(a) && isNumber(b) {
		e.chargeBig(a, b)
		return holds(op, numericOrder(a, b))
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			e.steps(min(len(x), len(y)) / bytesPerStep / 8)
			return holds(op, strings.Compare(x, y))
		}
	case textBytes:
		if y, ok := b.(textBytes); ok {
			return holds(op, strings.Compare(string(x), string(y)))
		}
	case []any:
		if y, ok := b.([]any); ok {
			return e.orderedItems(op, x, y, depth)
		}
	case tuple, *group:
		if typeName(b) == "tuple" {
			s, _ := sequence(a)
			t, _ := sequence(b)
			return e.orderedItems(op, s, t, depth)
		}
	}
	fail(KindType, "'%s' not supported between instances of '%s' and '%s'", comparisonNames[op], typeName(a), typeName(b))
	return false
}

func holds(op comparison, order int) bool {
	switch {
	case order == unordered:
		return false
	case op == cmpLt:
		return order < 0
	case op == cmpLe:
		return order <= 0
	case op == cmpGt:
		return order > 0
	}
	return order >= 0
}

func (e *evaluator) orderedItems(op comparison, a, b []any, depth int) bool {
	for i := 0; i < min(len(a), len(b)); i++ {
		x, y := norm(a[i]), norm(b[i])
		if !e.equal(x, y, depth+1) {
			return e.ordered(op, x, y, depth+1)
		}
	}
	order := 0
	if len(a) != len(b) {
		order = 1
		if len(a) < len(b) {
			order = -1
		}
	}
	return holds(op, order)
}

// contains is Python's "item in container".
func (e *evaluator) contains(container, item any) bool {
	switch c := container.(type) {
	case string:
		s, ok := item.(string)
		if !ok {
			mustDefinedIn(item)
			fail(KindType, "'in <string>' requires string as left operand, not %s", typeName(item))
		}
		e.steps(len(c) / bytesPerStep)
		return strings.Contains(c, s)
	case *undefined:
		return false
	case textBytes:
		s, ok := item.(textBytes)
		return ok && strings.Contains(string(c), string(s))
	case rangeValue:
		item = norm(item)
		if f, ok := item.(float64); ok {
			item, _ = intFromFloat(f)
		}
		return classOf(item) == smallInt && c.indexOf(toSmall(item)) >= 0
	case *mapView:
		if c.kind == "keys" {
			_, ok := c.of.get(e, item)
			return ok
		}
	}
	if m, ok := asMapping(container); ok {
		_, found := m.get(e, item)
		return found
	}
	if _, ok := e.iterable(container); !ok {
		fail(KindType, "argument of type '%s' is not iterable", typeName(container))
	}
	next := e.iterate(container)
	for v, ok := next(); ok; v, ok = next() {
		if sameValue(v, item) || e.equal(v, item, 0) {
			return true
		}
	}
	return false
}

// mustDefinedIn words the error for an undefined value left of "in 'text'".
func mustDefinedIn(item any) {
	if _, ok := item.(*undefined); ok {
		fail(KindType, "'in <string>' requires string as left operand, not Undefined")
	}
}

// sameValue is Python's identity where it differs from equality: a NaN is in a list that holds it.
func sameValue(a, b any) bool {
	x, ok := a.(float64)
	y, both := b.(float64)
	return ok && both && math.IsNaN(x) && math.IsNaN(y)
}

// sortBy sorts items by their keys, stably, as sorted(reverse=...) does.
func (e *evaluator) sortBy(items, keys []any, reverse bool) []any {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	e.items(len(items))
	less := func(i, j int) int {
		if reverse {
			i, j = j, i
		}
		if e.ordered(cmpLt, keys[i], keys[j], 0) {
			return -1
		}
		if e.ordered(cmpLt, keys[j], keys[i], 0) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, less)
	out := make([]any, len(items))
	for i, at := range order {
		out[i] = items[at]
	}
	return out
}
