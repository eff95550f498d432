package jinja

import (
	"maps"
	"slices"
)

// Position is a place in a template. Both numbers start at 1, and Column counts characters.
type Position struct{ Line, Column int }

// Taint says which values a template must not write unfiltered, such as the input of a user in
// the text of a shell script. See [Template.Tainted].
type Taint struct {
	// Sources are the variables and functions whose values are tainted.
	Sources []string
	// Trusted are functions whose results are clean, whatever their arguments.
	Trusted []string
	// Harmless reports whether a path below a source, such as metadata.name, is clean. Nil
	// means that no path is.
	Harmless func(path string) bool
	// Filters are the filters that make any value clean, such as tobash.
	Filters []string
}

// Tainted returns where the template writes a tainted value, without evaluating it. It follows
// assignments, loops and blocks. It does not look into macros: the result of a call with a tainted
// argument is tainted.
func (t *Template) Tainted(taint Taint) []Position {
	w := &flowWalk{Taint: taint, dirty: map[string]bool{}}
	for _, name := range taint.Sources {
		w.dirty[name] = true
	}
	w.all(t.body)
	var places []Position
	for _, pos := range w.found {
		at := errorAt(t.source, pos, "", "")
		places = append(places, Position{at.Line, at.Column})
	}
	return places
}

// SetsYAML reports whether the template sets the variable yaml anywhere. If it does not, Evaluate
// always replaces it by a string.
func (t *Template) SetsYAML() bool {
	w := &flowWalk{dirty: map[string]bool{}}
	w.all(t.body)
	_, set := w.dirty["yaml"]
	return set
}

// flowWalk is one walk through a template. dirty holds the names whose values are tainted.
type flowWalk struct {
	Taint
	dirty map[string]bool
	found []int
}

func (w *flowWalk) all(body []stmt) {
	for _, s := range body {
		w.stmt(s)
	}
}

// apart walks through a body that may or may not run. What is dirty before or after it stays
// dirty.
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
		w.found = w.found[:outputs] // reported where the name is written
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

// cleans reports whether a filter, or one before it in its chain, makes a value clean.
func (w *flowWalk) cleans(f *filterExpr) bool {
	if slices.Contains(w.Filters, f.name) {
		return true
	}
	input, ok := f.input.(*filterExpr)
	return ok && w.cleans(input)
}

// shows reports whether an expression may have a tainted value.
func (w *flowWalk) shows(x expr) bool {
	switch x := x.(type) {
	case *nameExpr:
		return w.dirty[x.name]
	case *attrExpr, *itemExpr:
		path, root := pathOf(x)
		return (w.Harmless == nil || !w.Harmless(path)) && w.shows(root)
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

// pathOf splits an expression into its first part and the path of attributes below it. An index
// that is not a literal string is [] in the path.
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
