package jinja

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Values are plain Go values: nil, bool, int, *big.Int (only what does not fit
// an int), float64, string, []any and map[string]any, which come from vars or
// from a template's list literal, and the types below. None of them is ever
// changed after it was made, except namespace, cycler, joiner, generator and
// loopState.
type (
	tuple []any
	// group is what groupby gives: a pair whose parts have names too.
	group struct{ key, items any }
	// textBytes are Python's bytes, the result of str.encode.
	textBytes string
	// mapView is what keys, values and items of a mapping give.
	mapView struct {
		kind string // keys, values, items
		of   mapping
	}
	// generator is a lazy sequence that can be read once.
	generator struct {
		next func() (any, bool)
	}
	namespace struct{ vars *dict }
	cycler    struct {
		items []any
		at    int
	}
	joiner struct {
		sep  any
		used bool
	}
	rangeValue struct{ start, stop, step, n int }
	// builtin is a function of the language itself, such as range.
	builtin struct {
		name string
		call func(e *evaluator, a *args) any
	}
	// method is a method taken from its object: 'a'.upper.
	method struct {
		recv any
		name string
		def  *methodDef
	}
	// hostFunc is a Func from vars under the name it had there.
	hostFunc struct {
		name string
		fn   Func
	}
	// blockRef and blockSet are self.name and self.
	blockRef struct{ block *blockStmt }
	blockSet struct{}
)

// undefined is the value of what is not there. It is lenient in tests and
// comparisons and an error in most other places; the error is made from here.
type undefined struct {
	kind    Kind
	message string // of the error, when already known
	of      any    // the object without the attribute or element name
	name    any
}

func (u *undefined) text() string {
	if u.message != "" {
		return u.message
	}
	desc := typeName(u.of) + " object"
	if u.of == nil {
		desc = "None"
	}
	if name, ok := u.name.(string); ok {
		return reprString(desc) + " has no attribute " + reprString(name)
	}
	return desc + " has no element " + shortRepr(u.name)
}

func (u *undefined) fail() {
	kind := u.kind
	if kind == "" {
		kind = KindUndefined
	}
	fail(kind, "%s", u.text())
}

// mustDefined fails if v is undefined.
func mustDefined(v any) any {
	if u, ok := v.(*undefined); ok {
		u.fail()
	}
	return v
}

// norm brings a value from vars to one of this package's types. Values of the
// package's own types pass through; it is called wherever an element of a map or
// a list is taken out, so vars are never copied as a whole.
func norm(v any) any {
	switch v := v.(type) {
	case nil, bool, int, float64, string, []any, map[string]any:
		return v
	case int64:
		return int(v)
	case int32:
		return int(v)
	case uint32:
		return int(v)
	case uint64:
		return shrink(new(big.Int).SetUint64(v))
	case float32:
		return float64(v)
	case json.Number:
		return numberFromJSON(v)
	case map[string]string:
		m := make(map[string]any, len(v))
		for k, s := range v {
			m[k] = s
		}
		return m
	case []string:
		l := make([]any, len(v))
		for i, s := range v {
			l[i] = s
		}
		return l
	case []map[string]any:
		l := make([]any, len(v))
		for i, m := range v {
			l[i] = m
		}
		return l
	case Func:
		return &hostFunc{"function", v}
	}
	if typeName(v) == "" {
		fail(KindType, "a value of Go type %T is not available to templates; pass JSON-like values", v)
	}
	return v
}

// typeName gives Python's name of a value's type, or "" for a foreign one.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int, *big.Int, int64, int32, uint32, uint64:
		return "int"
	case float64, float32, json.Number:
		return "float"
	case string:
		return "str"
	case []any, []string:
		return "list"
	case map[string]any, *dict, map[string]string:
		return "dict"
	case tuple, *group:
		return "tuple"
	case *undefined:
		return "Undefined"
	case textBytes:
		return "bytes"
	case *mapView:
		return "dict_" + v.kind
	case *generator:
		return "generator"
	case *namespace:
		return "Namespace"
	case *cycler:
		return "Cycler"
	case *joiner:
		return "Joiner"
	case rangeValue:
		return "range"
	case *loopState:
		return "LoopContext"
	case *macro:
		return "Macro"
	case *builtin, *hostFunc, Func:
		return "function"
	case *method:
		return "builtin_function_or_method"
	case *blockRef:
		return "BlockReference"
	case blockSet:
		return "TemplateReference"
	case *sliceValue:
		return "slice"
	}
	return ""
}

// truth is Python's bool().
func truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	case *undefined:
		return false
	case tuple:
		return len(v) > 0
	case textBytes:
		return v != ""
	case rangeValue:
		return v.n > 0
	case *mapView:
		return v.of.size() > 0
	case *dict:
		return v.size() > 0
	case *big.Int, *group, *generator, *namespace, *cycler, *joiner, *macro, *builtin, *hostFunc, *method, *blockRef, blockSet, *sliceValue:
		return true
	case *loopState:
		return v.length() > 0
	}
	return truth(norm(v))
}

// sequence gives the items of a list, a tuple or a group.
func sequence(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case tuple:
		return v, true
	case *group:
		return []any{v.key, v.items}, true
	}
	return nil, false
}

// mapping is a read-only dictionary with an order.
type mapping interface {
	size() int
	get(e *evaluator, key any) (any, bool)
	// pairs gives keys and values in order; the caller must not change them.
	pairs() (keys, values []any)
}

func asMapping(v any) (mapping, bool) {
	switch v := v.(type) {
	case map[string]any:
		return plainMap(v), true
	case *dict:
		return v, true
	case map[string]string:
		return plainMap(norm(v).(map[string]any)), true
	}
	return nil, false
}

// plainMap is a map from vars. Go's maps have no order, so it is that of the sorted keys.
type plainMap map[string]any

func (m plainMap) size() int { return len(m) }

func (m plainMap) get(e *evaluator, key any) (any, bool) {
	if s, ok := key.(string); ok {
		v, ok := m[s]
		return norm(v), ok
	}
	e.hash(key, 0) // an unhashable key is an error even here
	return nil, false
}

func (m plainMap) pairs() (keys, values []any) {
	keys, values = make([]any, len(m)), make([]any, len(m))
	for i, k := range sortedKeys(m) {
		keys[i], values[i] = k, norm(m[k])
	}
	return keys, values
}

// dict is a dictionary made by a template, in order of insertion.
type dict struct {
	keys, values []any
	index        map[any]int // by hash; made when the dictionary has grown past smallDict
}

const smallDict = 8

func newDict(size int) *dict {
	return &dict{keys: make([]any, 0, size), values: make([]any, 0, size)}
}

func (d *dict) size() int                   { return len(d.keys) }
func (d *dict) pairs() (keys, values []any) { return d.keys, d.values }

func (d *dict) find(e *evaluator, h any) int {
	if d.index != nil {
		if i, ok := d.index[h]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if e.hash(k, 0) == h {
			return i
		}
	}
	return -1
}

func (d *dict) get(e *evaluator, key any) (any, bool) {
	if i := d.find(e, e.hash(key, 0)); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// set is for building; a dict that a template can see is not changed, but for a namespace's.
func (d *dict) set(e *evaluator, key, value any) {
	h := e.hash(key, 0)
	if i := d.find(e, h); i >= 0 {
		d.values[i] = value
		return
	}
	if d.index == nil && len(d.keys) >= smallDict {
		d.index = make(map[any]int, 2*smallDict)
		for i, k := range d.keys {
			d.index[e.hash(k, 0)] = i
		}
	}
	if d.index != nil {
		d.index[h] = len(d.keys)
	}
	d.keys = append(d.keys, key)
	d.values = append(d.values, value)
}

// hash gives a comparable Go value, the same for all keys Python holds equal.
func (e *evaluator) hash(v any, depth int) any {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return v
	case bool:
		if v {
			return 1
		}
		return 0
	case float64:
		if n, ok := intFromFloat(v); ok {
			return e.hash(n, 0)
		}
		return v
	case *big.Int:
		e.steps(v.BitLen() / 64)
		return bigKey(strconv.Itoa(v.Sign()) + string(v.Bytes()))
	case nil:
		return nilKey{}
	case *undefined:
		return undefinedKey{}
	case tuple, *group:
		return e.hashItems(v, depth)
	case textBytes, rangeValue:
		return v
	case []any, *dict, map[string]any, *mapView, *sliceValue:
		fail(KindType, "unhashable type: '%s'", typeName(v))
	}
	switch n := norm(v).(type) {
	case int, float64, *big.Int:
		return e.hash(n, depth)
	default:
		return n // a pointer: equal to itself only
	}
}

func (e *evaluator) hashItems(v any, depth int) any {
	items, _ := sequence(v)
	e.checkDepth(depth)
	var b strings.Builder
	for _, item := range items {
		part := fmt.Sprintf("%T:%#[1]v", e.hash(item, depth+1))
		b.WriteString(strconv.Itoa(len(part)))
		b.WriteByte(':')
		b.WriteString(part)
		e.steps(len(part))
	}
	return tupleKey(b.String())
}

type (
	bigKey       string
	tupleKey     string
	nilKey       struct{}
	undefinedKey struct{}
)
