// Package jinja evaluates Jinja templates and answers as Python's Jinja 3.1 does. It is made
// for templates from authors whom you do not trust.
//
// A template is text with {{ expressions }}, {% statements %} and {# comments #}. It computes
// with JSON-like values. Arithmetic, string methods, formatting, filters and tests are those of
// Python and Jinja.
//
// # Use
//
// [Parse] compiles a template and [Template.Execute] renders it to text. [Evaluate] takes a whole
// object of maps, lists and strings, and evaluates each string in it. [Check] finds the syntax
// errors of such an object.
//
// A template that sets the top-level variable yaml to true makes a value instead of text:
// Evaluate reads the rendered text as one YAML document. See [Evaluate].
//
// # Variables
//
// The variables of a template are a map[string]any. Its values may be:
//
//   - nil, bool, string, float32 and float64
//   - int, int32, int64, uint32, uint64 and [encoding/json.Number]
//   - []any, []string and []map[string]any
//   - map[string]any and map[string]string
//   - [Func] and [Function], which a template can call
//
// A value of another type is an error of [KindType] as soon as a template uses it. The package
// never changes variables and never copies them as a whole. Do not change them during an
// evaluation.
//
// # Safety
//
// A template reaches nothing but its variables. There is no loader for other templates, and
// no access to files, the network, the environment or the clock. Methods and fields of Go values
// are out of reach, and so are the inner names of Python's objects, such as __class__. Values
// cannot be changed; only a namespace can.
//
// [Limits] bounds steps, output, depth and memory of each evaluation, and the context can stop
// it. A host function is your code: it gets the context and has to bound its own work. A panic,
// also one of a host function, becomes an error of [KindRuntime].
//
// Parsing takes time and memory in proportion to the source, which you have to bound yourself.
// Blocks and brackets nest at most 100 levels deep.
//
// # Undefined values
//
// An expression in {{ }} must give a string, a number or a boolean. Undefined values and none are
// errors there. In Python a finalize function gives the same. Everywhere else undefined is as in
// Jinja: false in a condition, and an error when a template computes with it. Use the filter
// default, or the test defined, for a value that may be missing.
//
// # Stability
//
// The version of this package is that of Tarn, the module that it belongs to. [Taint] and
// [Template.Tainted], [Marks] and [EvaluateMarked] were made for Tarn's own checks and may
// change. So may the texts of errors. The rest stays compatible.
package jinja

// How it is built
//
// A lexer gives tokens to a recursive-descent parser on demand (lexer*.go, parse*.go). The parser
// makes a tree of nodes (ast.go), which never changes afterwards. An evaluator walks the tree
// (eval.go, exec.go, loop.go, macro.go, call.go): expressions give values, statements write text.
// The evaluator holds all state of a run, with the budget (budget.go).
//
// Values are plain Go values (value.go, mapping.go, sequence.go, number.go). The function norm
// converts an element of the variables when the template reads it. What a value can do is in
// tables by name (tables.go): filters, tests, functions, and the methods of Python's types.
// attr.go decides what a dot reaches.
//
// Inside the package an error is a panic with an *Error, so that a filter in a loop in a macro
// can fail without plumbing. Parse and Execute recover it. The parser and the evaluator bound
// their own recursion, because Go cannot recover from an exhausted stack.
//
// object.go walks whole objects. yaml.go reads the text of templates that set yaml: the YAML
// library makes the tree, and this package gives scalars the meaning that PyYAML gives them.
