package jinja

import (
	"strconv"
	"strings"
)

// filterDef is a filter. A variadic one takes its arguments as they come, the
// others by signature, with absent for what was not given.
type filterDef struct {
	name     string
	sig      signature
	variadic bool
	call     func(e *evaluator, v any, a *args) any
	bound    func(e *evaluator, v any, a []any) any
}

func (f *filterDef) apply(e *evaluator, v any, a *args) any {
	if f.variadic {
		return f.call(e, v, a)
	}
	if len(f.sig.params) == 0 && len(a.pos) == 0 && len(a.names) == 0 {
		return f.bound(e, v, nil)
	}
	return f.bound(e, v, f.sig.bind(f.name, a))
}

// given reports whether an argument was given and is not none.
func given(v any) bool { return v != absent && v != nil }

// flag reads an optional boolean argument.
func flag(v any) bool { return v != absent && truth(v) }

// orElse reads an optional argument.
func orElse(v, def any) any {
	if v == absent {
		return def
	}
	return v
}

// intArg reads an optional integer argument.
func intArg(v any, def int, what string) int {
	if v == absent {
		return def
	}
	return toIndex(v, what)
}

// path is an attribute argument split at its dots: "spec.names.0".
type path []any

func (e *evaluator) splitPath(attribute any) path {
	switch a := attribute.(type) {
	case nil:
		return nil
	case string:
		var p path
		e.items(1 + strings.Count(a, "."))
		for _, part := range strings.Split(a, ".") {
			if n, err := strconv.Atoi(part); err == nil && all(isDigit)(part) {
				p = append(p, n)
			} else {
				p = append(p, part)
			}
		}
		return p
	}
	if attribute == absent {
		return nil
	}
	return path{attribute}
}

// get follows a path; def, unless nil, replaces what is undefined on the way.
func (e *evaluator) get(p path, v, def any) any {
	for _, part := range p {
		e.step()
		v = e.item(v, part)
		if _, missing := v.(*undefined); missing && def != nil {
			v = def
		}
	}
	return v
}

// fold makes strings lower case for comparisons that ignore case.
func (e *evaluator) fold(v any, caseSensitive bool) any {
	if s, ok := v.(string); ok && !caseSensitive {
		e.text(len(s))
		return lower(s)
	}
	return v
}

// namedFilter finds a filter by name, for map.
func (e *evaluator) namedFilter(name any) *filterDef {
	s, _ := name.(string)
	f := filterTable[s]
	if f == nil {
		fail(KindRuntime, "%s", missingFilter(e.str(name)))
	}
	return f
}

// lazy makes a generator over the items of v. Nothing is read before the first item is asked for.
func (e *evaluator) lazy(v any, start func(next func() (any, bool)) func() (any, bool)) any {
	var next func() (any, bool)
	return &generator{next: func() (any, bool) {
		if next == nil {
			next = start(e.iterate(v))
		}
		e.step()
		return next()
	}}
}

// filterMap is the filter map for a sequence that is not empty.
func (e *evaluator) filterMap(v any, a *args) any {
	apply := e.mapper(a)
	return e.lazy(v, func(next func() (any, bool)) func() (any, bool) {
		return func() (any, bool) {
			item, ok := next()
			if !ok {
				return nil, false
			}
			return apply(item), true
		}
	})
}

// mapper reads the arguments of map: a filter's name and its arguments, or attribute= and default=.
func (e *evaluator) mapper(a *args) func(any) any {
	if len(a.pos) == 0 {
		var attribute, def any = absent, nil
		for i, name := range a.names {
			switch name {
			case "attribute":
				attribute = a.values[i]
			case "default":
				def = a.values[i]
			default:
				fail(KindRuntime, "Unexpected keyword argument %s", reprString(name))
			}
		}
		if attribute == absent {
			fail(KindRuntime, "map requires a filter argument")
		}
		p := e.splitPath(attribute)
		return func(item any) any { return e.get(p, item, def) }
	}
	f := e.namedFilter(a.pos[0])
	rest := &args{pos: a.pos[1:], names: a.names, values: a.values}
	return func(item any) any { return f.apply(e, item, rest) }
}

// pick is select, reject, selectattr and rejectattr.
func pick(name string, byAttribute, want bool) *filterDef {
	return &filterDef{name: name, variadic: true, call: func(e *evaluator, v any, a *args) any {
		if !truth(v) {
			if _, ok := e.iterable(v); !ok && v != nil && !isNumber(v) {
				fail(KindType, "'%s' object is not iterable", typeName(v))
			}
			return &generator{next: func() (any, bool) { return nil, false }}
		}
		test := e.picker(a, byAttribute)
		return e.lazy(v, func(next func() (any, bool)) func() (any, bool) {
			return func() (any, bool) {
				for {
					item, ok := next()
					if !ok || test(item) == want {
						return item, ok
					}
				}
			}
		})
	}}
}

// picker reads the arguments of select and its kin.
func (e *evaluator) picker(a *args, byAttribute bool) func(any) bool {
	pos := a.pos
	var p path
	if byAttribute {
		if len(pos) == 0 {
			fail(KindRuntime, "Missing parameter for attribute name")
		}
		p, pos = e.splitPath(pos[0]), pos[1:]
	}
	if len(pos) == 0 {
		return func(item any) bool { return truth(e.get(p, item, nil)) }
	}
	name, _ := pos[0].(string)
	t := testTable[name]
	if t == nil {
		fail(KindRuntime, "%s", missingTest(e.str(pos[0])))
	}
	rest := &args{pos: pos[1:], names: a.names, values: a.values}
	return func(item any) bool { return t.apply(e, e.get(p, item, nil), rest) }
}

func pickFilters() []*filterDef {
	return []*filterDef{
		pick("select", false, true), pick("reject", false, false),
		pick("selectattr", true, true), pick("rejectattr", true, false),
		{name: "map", variadic: true, call: func(e *evaluator, v any, a *args) any {
			if !truth(v) {
				return &generator{next: func() (any, bool) { return nil, false }}
			}
			return e.filterMap(v, a)
		}},
	}
}
