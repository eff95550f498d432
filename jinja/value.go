package jinja

import (
	"encoding/json"
	"math/big"
)

// Values are plain Go values and the types below. The plain ones are nil, bool, int, *big.Int
// (only what does not fit an int), float64, string, []any and map[string]any. Only namespace,
// cycler, joiner, generator and loopState ever change.
type (
	tuple []any
	// group is an item of groupby: a pair whose parts also have names.
	group struct{ key, items any }
	// textBytes are Python's bytes, the result of str.encode.
	textBytes string
	// mapView is the result of keys, values and items of a mapping.
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
	// hostFunc is a Func or Function from vars, with its name there.
	hostFunc struct {
		name string
		Function
	}
	// blockRef and blockSet are self.name and self.
	blockRef struct{ block *blockStmt }
	blockSet struct{}
)

// undefined is the value of a name or an element that does not exist. Tests and comparisons
// accept it; most other uses fail with the error that it describes.
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

// norm converts a value from vars to one of this package's types; the package's own types pass
// through. It is called for each element that is read, so vars are never copied as a whole.
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
		return &hostFunc{"function", Function{Call: v}}
	case Function:
		return &hostFunc{"function", v}
	}
	if typeName(v) == "" {
		fail(KindType, "a value of Go type %T is not available to templates; pass JSON-like values", v)
	}
	return v
}

// typeName returns Python's name of a value's type, or "" for a type that is not supported.
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
	case *builtin, *hostFunc, Func, Function:
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

// sequence returns the items of a list, a tuple or a group.
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
