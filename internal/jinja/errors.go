package jinja

import (
	"fmt"
	"strings"
)

// Kind says what sort of rule a template broke.
type Kind string

// The kinds of errors. They are a closed set; users see them as they stand.
const (
	KindSyntax     Kind = "syntax"     // the text is no template, or names an unknown filter, test or tag
	KindUndefined  Kind = "undefined"  // a value that is not there was used
	KindType       Kind = "type"       // an operation does not accept values of this type
	KindValue      Kind = "value"      // the type is right and the value is not
	KindSecurity   Kind = "security"   // a name the sandbox keeps shut
	KindArithmetic Kind = "arithmetic" // division by zero, a number out of range
	KindLimit      Kind = "limit"      // a budget is used up
	KindLookup     Kind = "lookup"     // a missing index or key, or a host function that found nothing
	KindYAML       Kind = "yaml"       // the rendered text is not one YAML document
	KindRuntime    Kind = "runtime"    // anything else
)

// Error is the one error type of this package.
type Error struct {
	Kind    Kind
	Message string
	// Line and Column are 1-based and count characters in the template; 0 means unknown.
	Line, Column int
	// Path is the field that held the template, as in
	// podTemplate.spec.containers[0].command[2]; empty when there was no object.
	Path string
	// Snippet is the line of the template the error points at, without its newline.
	Snippet string
	// Err is the error of a host function or of the context, if there was one.
	Err error
}

// Error gives the error on one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		b.WriteString(e.Path)
		b.WriteString(": ")
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", e.Line, e.Column)
	}
	fmt.Fprintf(&b, "%s error: %s", e.Kind, strings.ReplaceAll(e.Message, "\n", " "))
	return b.String()
}

// Unwrap gives the error of a host function or of the context.
func (e *Error) Unwrap() error { return e.Err }
