// Package jinja evaluates Jinja templates the way Python's Jinja 3.1 does, for
// input that nobody vouches for.
//
// It is for provisioner authors' templates: text with {{ expressions }} and
// {% statements %} over JSON-like values, with Python's arithmetic, string
// methods and formatting, Jinja's filters and tests, the filters tobash and
// tobytes, and a flag, the top-level variable yaml, that turns the rendered text
// into a value.
//
// It must not know Kubernetes beyond the way it writes sizes, nor files, the
// network or the clock: whatever a template may see comes in through vars, and
// no Go method or field can be reached from a template. Every evaluation runs
// under a budget of steps, output, depth and memory, and under a context; the
// vars are only read.
//
// # Shape
//
// A lexer hands tokens to a recursive-descent parser as it asks for them
// (lexer*.go, parse*.go). The parser makes a tree of nodes (ast.go) that is
// never changed afterwards. An evaluator walks it (eval.go, exec.go, loop.go,
// macro.go, call.go): expressions give values, statements write text. It holds
// all state of a run, the budget (budget.go) among it.
//
// Values are plain Go values (value.go, mapping.go, sequence.go, number.go).
// Elements that come from vars are brought to the package's own types where
// they are taken out (norm), so that vars are never copied as a whole. What a
// value can do is in tables by name (tables.go): filters, tests, functions, and
// the methods of Python's types; attr.go decides what a dot reaches.
//
// Errors travel within the package as panics with an *Error, which Parse and
// Execute recover; so a filter in a loop in a macro needs no plumbing, and a
// mistake of this package cannot take the process along. The parser bounds how
// deep a tree may be and the evaluator how deep calls may go, because the one
// thing Go cannot recover is a stack that is used up.
//
// object.go walks whole objects, and yaml.go reads the text of templates that
// set yaml: the library makes the tree, this package decides what scalars mean,
// by the rules of YAML 1.1 as PyYAML has them.
package jinja
