package jinja

import (
	"context"
)

// Func is a host function that templates may call. args are JSON-like values;
// so must be the result.
type Func func(ctx context.Context, args []any) (any, error)

// Limits bounds one evaluation. A zero field means its default.
type Limits struct {
	// Steps counts nodes evaluated, passes of loops, characters made and values compared. Default 1,000,000.
	Steps int
	// OutputBytes bounds the rendered text, and the text of each macro and block. Default 1 MiB.
	OutputBytes int
	// Depth bounds calls within calls and values within values. Default 100.
	Depth int
	// MemoryBytes bounds what all strings and containers made during the evaluation take together. Default 32 MiB.
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
	source string
}

// Parse compiles a template. The error is always an *Error.
func Parse(source string) (*Template, error) {
	return nil, &Error{Kind: KindRuntime, Message: "the engine is being written"}
}

// Execute renders the template. The error is always an *Error.
func (t *Template) Execute(ctx context.Context, vars map[string]any, limits Limits) (Result, error) {
	return Result{}, &Error{Kind: KindRuntime, Message: "the engine is being written"}
}

// Evaluate evaluates every string value of object, at any depth, and gives a
// new object; map keys and values that are not strings stay as they are. The
// error is always an *Error and carries the field's path.
func Evaluate(ctx context.Context, object any, vars map[string]any, limits Limits) (any, error) {
	return nil, &Error{Kind: KindRuntime, Message: "the engine is being written"}
}

// Check gives every syntax error in every string value of object, ordered by
// path, maps by key.
func Check(object any) []*Error {
	return nil
}
