package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// mapping is a read-only dictionary with an order.
type mapping interface {
	size() int
	get(e *evaluator, key any) (any, bool)
	// pairs returns keys and values in order; the caller must not change them.
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

// plainMap is a map from vars. Its order is that of the sorted keys, because Go's maps have none.
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

// set is for building; a dict that a template can see never changes, except a namespace's.
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

// hash returns a comparable Go value, the same for all keys Python holds equal.
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
