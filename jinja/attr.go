package jinja

import (
	"math"
	"math/big"
	"strings"
)

// attr is object.name. Unlike in Python, the keys of a mapping win over its methods, so that
// params.items is the parameter if there is one.
func (e *evaluator) attr(object any, name string) any {
	object = norm(object)
	if m, ok := object.(map[string]any); ok { // the common case first
		if v, ok := m[name]; ok {
			return norm(v)
		}
	} else if v, ok := e.ownAttr(object, name); ok {
		return v
	}
	if u, ok := object.(*undefined); ok && !isInner(name) {
		u.fail()
	}
	return e.methodOrUndefined(object, name)
}

// isInner reports whether a name is an inner attribute of Python's objects.
func isInner(name string) bool {
	if len(name) <= 4 || !strings.HasPrefix(name, "__") || !strings.HasSuffix(name, "__") {
		return false
	}
	switch strings.Trim(name, "_") {
	case "add", "and", "bool", "call", "class", "contains", "delattr", "delitem", "dir", "doc", "eq", "float", "format", "ge", "getattribute",
		"getitem", "getnewargs", "getstate", "gt", "hash", "iadd", "init", "init_subclass", "int", "iter", "le", "len", "lt", "mod", "module", "mul",
		"ne", "neg", "new", "or", "pos", "pow", "radd", "reduce", "reduce_ex", "repr", "reversed", "rmod", "rmul", "setattr", "setitem", "sizeof",
		"slots", "str", "sub", "subclasshook", "truediv":
		return true
	}
	return false // other inner names, such as __mro__ and __globals__, do not exist here
}

func (e *evaluator) methodOrUndefined(object any, name string) any {
	if isUnsafe(object, name) {
		return &undefined{kind: KindSecurity, message: "access to attribute '" + name + "' of '" + typeName(object) + "' object is unsafe."}
	}
	if def := e.methodOf(object, name); def != nil {
		return &method{object, name, def}
	}
	return &undefined{of: object, name: name}
}

// ownAttr finds what is not a method: keys, and the fields of special objects.
func (e *evaluator) ownAttr(object any, name string) (any, bool) {
	switch o := object.(type) {
	case *dict:
		return o.get(e, name)
	case *namespace:
		return o.vars.get(e, name)
	case *loopState:
		return o.attr(name)
	case *macro:
		return o.attr(e, name)
	case *group:
		switch name {
		case "grouper":
			return o.key, true
		case "list":
			return o.items, true
		}
	case *cycler:
		switch name {
		case "current":
			return o.items[o.at], true
		case "pos":
			return o.at, true
		case "items":
			return tuple(o.items), true
		}
	case *joiner:
		switch name {
		case "sep":
			return o.sep, true
		case "used":
			return o.used, true
		}
	case rangeValue:
		switch name {
		case "start":
			return o.start, true
		case "stop":
			return o.stop, true
		case "step":
			return o.step, true
		}
	case blockSet:
		if b := e.tmpl.blocks[name]; b != nil {
			return &blockRef{b}, true
		}
	case int, bool, *big.Int, float64:
		return numberAttr(o, name)
	}
	return nil, false
}

func numberAttr(v any, name string) (any, bool) {
	switch name {
	case "real":
		return plainInt(v), true
	case "imag":
		if _, ok := v.(float64); ok {
			return 0.0, true
		}
		return 0, true
	}
	if _, isFloat := v.(float64); isFloat {
		return nil, false
	}
	switch name {
	case "numerator":
		return plainInt(v), true
	case "denominator":
		return 1, true
	}
	return nil, false
}

// plainInt makes a number of a boolean.
func plainInt(v any) any {
	if b, ok := v.(bool); ok {
		return toSmall(b)
	}
	return v
}

// isUnsafe reports whether the sandbox forbids an attribute: Python's inner
// names, and all that would change a value.
func isUnsafe(object any, name string) bool {
	if isInner(name) {
		return true
	}
	switch object.(type) {
	case *macro, *builtin, *hostFunc, *method:
		return strings.HasPrefix(name, "__")
	case map[string]any, *dict:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	case []any:
		switch name {
		case "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort":
			return true
		}
	}
	return false
}

// methodOf returns the method that object.name stands for, or nil if it is not a method.
func (e *evaluator) methodOf(object any, name string) *methodDef {
	switch o := object.(type) {
	case string:
		return strMethods[name]
	case map[string]any:
		if _, isKey := o[name]; isKey {
			return nil
		}
		return dictMethods[name]
	case *dict:
		if _, isKey := o.get(e, name); isKey {
			return nil
		}
		return dictMethods[name]
	case []any, tuple, *group:
		if _, isField := e.ownAttr(object, name); isField {
			return nil
		}
		if _, isTuple := object.([]any); !isTuple && name == "copy" {
			return nil
		}
		return listMethods[name]
	case rangeValue:
		if name == "copy" {
			return nil
		}
		return listMethods[name]
	case int, bool, *big.Int:
		return intMethods[name]
	case float64:
		return floatMethods[name]
	case textBytes:
		return bytesMethods[name]
	case *loopState:
		return loopMethods[name]
	case *cycler:
		return cyclerMethods[name]
	}
	return nil
}

// item is object[index].
func (e *evaluator) item(object, index any) any {
	object = norm(object)
	if u, ok := object.(*undefined); ok {
		u.fail()
	}
	switch i := index.(type) {
	case string:
		if m, ok := asMapping(object); ok {
			if v, ok := m.get(e, i); ok {
				return v
			}
		}
		if v, ok := e.ownAttr(object, i); ok {
			return v
		}
		return e.methodOrUndefined(object, i)
	case *sliceValue:
		v, ok := e.slice(object, i)
		if !ok {
			failSlice(object)
		}
		return v
	case int, bool:
		if _, isMap := asMapping(object); !isMap {
			if v, ok := e.element(object, toSmall(i)); ok {
				return v
			}
			return &undefined{of: object, name: index}
		}
	}
	if m, ok := asMapping(object); ok && e.hashable(index) {
		if v, ok := m.get(e, index); ok {
			return v
		}
	}
	return &undefined{of: object, name: index}
}

// failSlice words the error for an object or for indices that cannot be sliced.
func failSlice(object any) {
	if _, isMap := asMapping(object); isMap {
		fail(KindType, "unhashable type: 'slice'")
	}
	if _, ok := sequence(object); ok || isSequence(object) {
		fail(KindType, "slice indices must be integers or None")
	}
	fail(KindType, "'%s' object is not subscriptable", typeName(object))
}

// hashable reports whether a value can be a key; subscripts accept all others too.
func (e *evaluator) hashable(v any) bool {
	switch v := v.(type) {
	case []any, *dict, map[string]any, *mapView, *sliceValue:
		return false
	case tuple, *group:
		items, _ := sequence(v)
		for _, item := range items {
			e.step()
			if !e.hashable(norm(item)) {
				return false
			}
		}
	}
	return true
}

// toIndex reads an integer argument of a method.
func toIndex(v any, what string) int {
	switch classOf(v) {
	case smallInt:
		return toSmall(v)
	case bigInt:
		if toBig(v).Sign() < 0 {
			return math.MinInt32
		}
		return math.MaxInt32
	}
	fail(KindType, "%s: '%s' object cannot be interpreted as an integer", what, typeName(norm(v)))
	return 0
}
