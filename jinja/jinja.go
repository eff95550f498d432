package jinja

import (
	"context"
	"slices"
)

// Func is a host function that templates may call. args are JSON-like values;
// so must be the result. An error of it ends the evaluation with KindLookup,
// unless it is an *Error, whose kind is kept.
type Func func(ctx context.Context, args []any) (any, error)

// Limits bounds one evaluation. A zero field means its default.
type Limits struct {
	// Steps counts nodes evaluated, passes of loops, characters made by
	// repetition and padding, values compared. Default 1,000,000.
	Steps int
	// OutputBytes bounds the rendered text of a template, and of each macro and
	// block within it. Default 1 MiB.
	OutputBytes int
	// Depth bounds macros within macros and values within values. Default 100.
	Depth int
	// MemoryBytes bounds what all strings and containers made during the
	// evaluation take together. Default 16 MiB.
	MemoryBytes int
}

// Result is a rendered template.
type Result struct {
	Text string
	// YAML is true when the template set the top-level variable yaml to true.
	YAML bool
}

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct {
	source  string
	body    []stmt
	blocks  map[string]*blockStmt
	read    []string // sorted
	written []string
}

// Parse compiles a template. The error is always an *Error.
func Parse(source string) (*Template, error) {
	return parseTemplate(source)
}

// Globals gives the names the template reads and assigns nowhere, sorted: the
// variables it wants from outside, and the global functions it uses.
func (t *Template) Globals() []string {
	return slices.DeleteFunc(t.Reads(), func(name string) bool { return slices.Contains(t.written, name) })
}

// Reads gives the names the template reads anywhere, sorted. A name that it also assigns is among
// them: it may have been read before.
func (t *Template) Reads() []string { return slices.Clone(t.read) }

// Execute renders the template. vars is only read. The error is always an *Error.
func (t *Template) Execute(ctx context.Context, vars map[string]any, limits Limits) (Result, error) {
	result, _, err := t.run(newBudget(ctx, limits), vars, Marks{})
	return result, err
}

// run renders the template within a budget. It also gives where yaml was set.
func (t *Template) run(b *budget, vars map[string]any, marks Marks) (result Result, yamlAt int, err error) {
	e := &evaluator{budget: b, tmpl: t, vars: vars}
	e.root = &scope{}
	e.scope = e.root
	defer func() {
		if r := recover(); r != nil {
			result = Result{}
			err = recovered(r, t.source, e.at)
		}
	}()
	e.out.marks = marks
	e.check()
	e.exec(t.body)
	isYAML := e.yaml.on(e)
	return Result{string(e.out.text), isYAML}, e.yaml.pos, nil
}
