package jinja

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Func is a host function: a variable that templates can call. Arguments are given by position.
//
// args are nil, bool, int, float64, string, []any and map[string]any. The result may be any value
// that a variable may have. ctx is the one given to Execute or Evaluate.
//
// An error ends the evaluation with KindLookup, or with KindLimit if it wraps the error of a
// context. To choose another kind, return an *Error with Kind and Message.
type Func func(ctx context.Context, args []any) (any, error)

// Function is a host function whose arguments templates may also give by name. A wrong number of
// arguments or an unknown name is an error of KindType, and Call is not called.
type Function struct {
	// Params are the names of the parameters, in order.
	Params []string
	// Required is how many of the first parameters must be given. The others are optional, and
	// Call gets only those that were given.
	Required int
	// Strings is how many of the required parameters accept strings only.
	Strings int
	Call    Func
}

// Limits bounds one evaluation. A field of zero or less means its default. An evaluation that
// exceeds a limit ends with an error of KindLimit.
type Limits struct {
	// Steps bounds the work: each node evaluated, each pass of a loop, each value compared, and
	// each character made by repetition or padding. Default 1,000,000, which takes less than a
	// second.
	Steps int
	// OutputBytes bounds the rendered text of a template, and of each macro and
	// block within it. Default 1 MiB (1 << 20).
	OutputBytes int
	// Depth bounds macros within macros and values within values. Default 100.
	Depth int
	// MemoryBytes bounds all strings and containers made during the evaluation together. What
	// is no longer used still counts. Default 16 MiB (16 << 20).
	MemoryBytes int
}

// Result is a rendered template.
type Result struct {
	Text string
	// YAML is true if the template set the top-level variable yaml to true. Text is as rendered
	// then too; Evaluate is what reads it as YAML.
	YAML bool
}

// Template is a parsed template. It never changes and is safe for concurrent use. Parse makes one;
// the zero value is an empty template.
type Template struct {
	source  string
	body    []stmt
	blocks  map[string]*blockStmt
	read    []string // sorted
	written []string
	paths   map[string]int
}

// Parse compiles a template. As in Jinja, a newline at the end of the source is dropped, and \r\n
// becomes \n. The error is always an *Error.
func Parse(source string) (*Template, error) {
	return parseTemplate(source)
}

// Globals returns the names that the template reads and assigns nowhere, sorted. They are the
// variables that it needs, and the names of the language that it uses, such as range and loop.
func (t *Template) Globals() []string {
	return slices.DeleteFunc(t.Reads(), func(name string) bool { return slices.Contains(t.written, name) })
}

// Reads returns the names that the template reads anywhere, sorted. Those that it also assigns are
// included, because it may read them before.
func (t *Template) Reads() []string { return slices.Clone(t.read) }

// Paths returns the names that the template reads, each followed by the keys it reads below them, in
// order. params.size, params['size'], params.get('size') and 'size' in params are all the path
// params, size. A value that is used in any other way, such as in a loop or with a key that is no
// constant, is a path that ends there. What a function returns counts as the function: f(x).size is
// the path f, size. A name that is assigned counts as read. No path has more than eight parts.
func (t *Template) Paths() [][]string {
	var paths [][]string
	for _, path := range slices.Sorted(maps.Keys(t.paths)) {
		if t.paths[path] > 0 {
			paths = append(paths, strings.Split(path, pathSeparator))
		}
	}
	return paths
}

// Execute renders the template. ctx must not be nil; when it ends, so does the evaluation, with
// KindLimit. vars may be nil and is never changed. The error is always an *Error.
func (t *Template) Execute(ctx context.Context, vars map[string]any, limits Limits) (Result, error) {
	result, _, err := t.run(newBudget(ctx, limits), vars, Marks{})
	return result, err
}

// run renders the template within a budget. It also returns where yaml was set.
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
