package jinja

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// args are the evaluated arguments of a call.
type args struct {
	pos    []any
	names  []string
	values []any
}

var emptyArgs = &args{}

func (e *evaluator) args(x *argExprs) *args {
	if x == noArgs {
		return emptyArgs
	}
	a := &args{}
	if len(x.pos) > 0 {
		a.pos = e.evalAll(x.pos)
	}
	if x.star != nil {
		a.pos = append(a.pos, e.collect(x.star.eval(e))...)
	}
	for i, name := range x.names {
		a.names = append(a.names, name)
		a.values = append(a.values, x.values[i].eval(e))
	}
	if x.starStar != nil {
		e.spread(a, x.starStar.eval(e))
	}
	return a
}

// spread adds the entries of **v.
func (e *evaluator) spread(a *args, v any) {
	m, ok := asMapping(v)
	if !ok {
		mustDefined(v)
		fail(KindType, "argument after ** must be a mapping, not %s", typeName(v))
	}
	keys, values := m.pairs()
	e.items(len(keys))
	written := a.names // few; the keys of a mapping differ from one another
	for i, k := range keys {
		name, ok := k.(string)
		if !ok {
			fail(KindType, "keywords must be strings")
		}
		for _, other := range written {
			if other == name {
				fail(KindType, "got multiple values for keyword argument '%s'", name)
			}
		}
		a.names = append(a.names, name)
		a.values = append(a.values, values[i])
	}
}

// signature says how arguments are bound. Required parameters come first.
type signature struct {
	params   []string
	required int
	posOnly  bool // keywords are refused
}

// absent marks an argument that was not given.
type absentArg struct{}

var absent any = absentArg{}

// bind puts arguments in the order of the parameters; a missing one is absent.
func (s *signature) bind(name string, a *args) []any {
	out := make([]any, len(s.params))
	if len(a.pos) > len(s.params) {
		fail(KindType, "%s() takes at most %d argument(s) but %d were given", name, len(s.params), len(a.pos))
	}
	n := copy(out, a.pos)
	for i := n; i < len(out); i++ {
		out[i] = absent
	}
	for i, key := range a.names {
		s.bindName(name, out, n, key, a.values[i])
	}
	for i := range s.required {
		if out[i] == absent {
			fail(KindType, "%s() missing required argument: '%s'", name, s.params[i])
		}
	}
	return out
}

func (s *signature) bindName(name string, out []any, given int, key string, value any) {
	if s.posOnly {
		fail(KindType, "%s() takes no keyword arguments", name)
	}
	for j, p := range s.params {
		if p == key {
			if j < given {
				fail(KindType, "%s() got multiple values for argument '%s'", name, key)
			}
			out[j] = value
			return
		}
	}
	fail(KindType, "%s() got an unexpected keyword argument '%s'", name, key)
}

func (x *callExpr) eval(e *evaluator) any {
	// A method that is called at once needs no value of its own.
	if at, ok := x.callee.(*attrExpr); ok {
		object := at.object.eval(e)
		e.at = at.pos
		if def := e.methodOf(object, at.name); def != nil {
			a := e.args(x.args)
			e.at = at.pos
			e.step()
			return def.apply(e, object, a)
		}
		callee := e.attr(object, at.name)
		return x.finish(e, callee)
	}
	return x.finish(e, x.callee.eval(e))
}

func (x *callExpr) finish(e *evaluator, callee any) any {
	a := e.args(x.args)
	e.at = x.pos
	e.step()
	return e.call(callee, a)
}

// call calls any value.
func (e *evaluator) call(callee any, a *args) any {
	switch c := callee.(type) {
	case *macro:
		return c.call(e, a)
	case *builtin:
		return c.call(e, a)
	case *method:
		return c.def.apply(e, c.recv, a)
	case *hostFunc:
		return e.callHost(c, a)
	case *loopState:
		return c.callRecursive(e, a)
	case *joiner:
		(&signature{}).bind("joiner", a)
		if !c.used {
			c.used = true
			return ""
		}
		return c.sep
	case *blockRef:
		(&signature{}).bind("block", a)
		saved := e.out
		e.out = output{}
		c.block.exec(e)
		text := string(e.out.text)
		e.out = saved
		e.text(len(text))
		return text
	case *undefined:
		c.fail()
	}
	fail(KindType, "'%s' object is not callable", typeName(norm(callee)))
	return nil
}

func (l *loopState) callRecursive(e *evaluator, a *args) any {
	if l.recurse == nil {
		fail(KindType, "The loop must have the 'recursive' marker to be called recursively.")
	}
	bound := (&signature{params: []string{"iterable"}, required: 1}).bind("loop", a)
	return l.recurse(bound[0])
}

func (e *evaluator) callHost(h *hostFunc, a *args) any {
	values := a.pos
	if h.Params != nil {
		sig := &signature{params: h.Params, required: h.Required}
		values = slices.DeleteFunc(sig.bind(h.name, a), func(v any) bool { return v == absent })
		for i, v := range values[:min(h.Strings, h.Required)] {
			if _, ok := v.(string); !ok {
				fail(KindType, "the argument '%s' of %s() must be a string, not %s", h.Params[i], h.name, typeName(v))
			}
		}
	} else if len(a.names) > 0 {
		fail(KindType, "%s() takes no keyword arguments", h.name)
	}
	plain := make([]any, len(values))
	for i, v := range values {
		plain[i] = e.export(v, 0)
	}
	e.check()
	result, err := h.Call(e.ctx, plain)
	if err != nil {
		panic(hostError(h.name, err))
	}
	return norm(result)
}

func hostError(name string, err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return &Error{Kind: own.Kind, Message: own.Message, Err: err}
	}
	kind := KindLookup
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		kind = KindLimit
	}
	return &Error{Kind: kind, Message: fmt.Sprintf("%s: %s", name, strings.ReplaceAll(err.Error(), "\n", " ")), Err: err}
}

// export turns a value into JSON-like Go values for host functions.
func (e *evaluator) export(v any, depth int) any {
	e.checkDepth(depth)
	switch v := norm(v).(type) {
	case nil, bool, int, float64, string:
		return v
	case *undefined:
		v.fail()
	case *dict, map[string]any:
		m, _ := asMapping(v)
		keys, values := m.pairs()
		e.items(4 * len(keys))
		out := make(map[string]any, len(keys))
		for i, k := range keys {
			s, ok := k.(string)
			if !ok {
				fail(KindType, "keys must be strings, not %s", typeName(k))
			}
			out[s] = e.export(values[i], depth+1)
		}
		return out
	default:
		if items, ok := sequence(v); ok {
			e.items(len(items))
			out := make([]any, len(items))
			for i, item := range items {
				out[i] = e.export(item, depth+1)
			}
			return out
		}
	}
	fail(KindType, "a %s cannot be passed to a host function", typeName(norm(v)))
	return nil
}
