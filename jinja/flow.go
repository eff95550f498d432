package jinja

import (
	"maps"
	"slices"
)

// Place is where something stands in a template, counted from 1.
type Place struct{ Line, Column int }

// Flow says which values of a template are not to be shown as they are.
type Flow struct {
	// Sources are the variables and functions with such values.
	Sources []string
	// Trusted are functions whose results may be shown, whatever they are given.
	Trusted []string
	// Harmless says of a path below a source, like metadata.name, that it may be shown.
	Harmless func(path string) bool
	// Filters make any value fit to be shown.
	Filters []string
}

// Shown gives the outputs that show such a value as it is. It follows assignments and loops,
// not what a macro makes of its arguments: a call of one that is given such a value counts as one.
func (t *Template) Shown(f Flow) []Place {
	w := &flowWalk{Flow: f, dirty: map[string]bool{}}
	for _, name := range f.Sources {
		w.dirty[name] = true
	}
	w.all(t.body)
	var places []Place
	for _, pos := range w.found {
		at := errorAt(t.source, pos, "", "")
		places = append(places, Place{at.Line, at.Column})
	}
	return places
}

// SetsYAML says whether a template sets, anywhere, the variable by which its text is read as YAML.
func (t *Template) SetsYAML() bool {
	w := &flowWalk{Flow: Flow{Harmless: func(string) bool { return false }}, dirty: map[string]bool{}}
	w.all(t.body)
	_, set := w.dirty["yaml"]
	return set
}

// flowWalk is one walk through a template. dirty are the names whose values are not to be shown.
type flowWalk struct {
	Flow
	dirty map[string]bool
	found []int
}

func (w *flowWalk) all(body []stmt) {
	for _, s := range body {
		w.stmt(s)
	}
}

// apart walks through a body of which it is not known whether it runs: what is dirty before
// or after it is dirty then.
func (w *flowWalk) apart(body []stmt) {
	before := maps.Clone(w.dirty)
	w.all(body)
	for name, dirty := range before {
		w.dirty[name] = w.dirty[name] || dirty
	}
}

func (w *flowWalk) stmt(s stmt) {
	switch s := s.(type) {
	case *outputStmt:
		if w.shows(s.value) {
			w.found = append(w.found, s.pos)
		}
	case *setStmt:
		w.assign(s.target, w.shows(s.value))
	case *setBlockStmt:
		outputs := len(w.found)
		w.all(s.body)
		dirty := len(w.found) > outputs && !(s.filter != nil && w.cleans(s.filter))
		w.found = w.found[:outputs] // shown where the name is
		w.assign(s.target, dirty)
	case *ifStmt:
		for _, b := range s.branches {
			w.apart(b.body)
		}
		w.apart(s.orElse)
	case *forStmt:
		w.assign(s.target, w.shows(s.iter))
		w.apart(s.body)
		w.apart(s.orElse)
	case *withStmt:
		for i, target := range s.targets {
			w.assign(target, w.shows(s.values[i]))
		}
		w.all(s.body)
	case *macroStmt:
		w.apart(s.macro.body)
	case *callStmt:
		w.apart(s.caller.body)
		if w.shows(s.call) {
			w.found = append(w.found, s.pos)
		}
	case *filterStmt:
		outputs := len(w.found)
		w.all(s.body)
		if w.cleans(s.filter) {
			w.found = w.found[:outputs]
		}
	case *blockStmt:
		w.all(s.body)
	case *scopeStmt:
		w.all(s.body)
	}
}

func (w *flowWalk) assign(t target, dirty bool) {
	for _, part := range t.tuple {
		w.assign(part, dirty)
	}
	if t.name != "" {
		w.dirty[t.name] = dirty || t.attr != "" && w.dirty[t.name]
	}
}

// cleans says whether a filter, or one that its input has gone through, makes it fit.
func (w *flowWalk) cleans(f *filterExpr) bool {
	if slices.Contains(w.Filters, f.name) {
		return true
	}
	input, ok := f.input.(*filterExpr)
	return ok && w.cleans(input)
}

// shows says whether an expression may have a value that is not to be shown.
func (w *flowWalk) shows(x expr) bool {
	switch x := x.(type) {
	case *nameExpr:
		return w.dirty[x.name]
	case *attrExpr, *itemExpr:
		path, root := pathOf(x)
		return !w.Harmless(path) && w.shows(root)
	case *filterExpr:
		return !slices.Contains(w.Filters, x.name) && (w.shows(x.input) || w.given(x.args))
	case *callExpr:
		if name, ok := x.callee.(*nameExpr); ok && slices.Contains(w.Trusted, name.name) {
			return false
		}
		return w.shows(x.callee) || w.given(x.args)
	case *listExpr:
		return w.any(x.items)
	case *tupleExpr:
		return w.any(x.items)
	case *dictExpr:
		return w.any(x.keys) || w.any(x.values)
	case *concatExpr:
		return w.any(x.parts)
	case *binaryExpr:
		return w.shows(x.left) || w.shows(x.right)
	case *logicOr:
		return w.shows(x.left) || w.shows(x.right)
	case *logicAnd:
		return w.shows(x.left) || w.shows(x.right)
	case *condExpr:
		return w.shows(x.yes) || w.shows(x.no)
	}
	return false // constants, numbers, and answers of yes or no
}

func (w *flowWalk) any(list []expr) bool {
	return slices.ContainsFunc(list, w.shows)
}

func (w *flowWalk) given(a *argExprs) bool {
	return a != nil && (w.any(a.pos) || w.any(a.values) || w.shows(a.star) || w.shows(a.starStar))
}

// pathOf gives the attributes below the first part of an expression, as far as they are
// written out, and that part.
func pathOf(x expr) (path string, root expr) {
	join := func(object expr, name string) (string, expr) {
		before, root := pathOf(object)
		if before != "" {
			name = before + "." + name
		}
		return name, root
	}
	switch x := x.(type) {
	case *attrExpr:
		return join(x.object, x.name)
	case *itemExpr:
		name := "[]"
		if c, ok := x.index.(*constExpr); ok {
			if text, ok := c.value.(string); ok {
				name = text
			}
		}
		return join(x.object, name)
	}
	return "", x
}
