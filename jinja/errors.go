package jinja

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Kind is the class of an error.
type Kind string

// The kinds of errors. There are no others, and their texts do not change.
const (
	KindSyntax     Kind = "syntax"     // the text is not a template, or names an unknown filter, test or tag
	KindUndefined  Kind = "undefined"  // a value that does not exist was used
	KindType       Kind = "type"       // an operation does not accept values of this type
	KindValue      Kind = "value"      // the type is right and the value is not
	KindSecurity   Kind = "security"   // the sandbox forbids this name or change
	KindArithmetic Kind = "arithmetic" // division by zero, a number out of range
	KindLimit      Kind = "limit"      // a limit was exceeded, or the context ended
	KindLookup     Kind = "lookup"     // a missing index or key, or an error of a host function
	KindYAML       Kind = "yaml"       // the rendered text is not one YAML document of JSON-like values
	KindRuntime    Kind = "runtime"    // anything else
)

// Error is the type of all errors of this package. Use errors.As to get it.
type Error struct {
	Kind    Kind
	Message string
	// Line and Column are where in the template the error is. Both start at 1, and Column counts
	// characters. For KindYAML they are where the template set yaml. They are 0 if the object
	// itself is at fault, not a template in it.
	Line, Column int
	// Path is the field that held the template, such as spec.containers[0].command[2]. It is
	// empty for Parse, for Execute, and for an object that is a single string.
	Path string
	// Snippet is the line of the template that Line names, without its newline.
	Snippet string
	// Err is the error of a host function or of the context, or nil.
	Err error
}

// Error returns path, line, column, kind and message on one line.
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

// Detail returns the error on several lines: what Error returns, the line of the template, and a
// caret under the column.
func (e *Error) Detail() string {
	if e.Line == 0 {
		return e.Error()
	}
	line := []rune(e.Snippet)
	from := 0
	if len(line) > maxSnippet {
		from = max(0, min(e.Column-1-maxSnippet/2, len(line)-maxSnippet))
		line = line[from : from+maxSnippet]
	}
	var indent strings.Builder
	for i := from; i < e.Column-1; i++ {
		if i-from < len(line) && line[i-from] == '\t' {
			indent.WriteByte('\t')
		} else {
			indent.WriteByte(' ')
		}
	}
	return fmt.Sprintf("%s\n  %s\n  %s^", e.Error(), string(line), indent.String())
}

// maxSnippet is how many characters of a long line Detail shows around the column.
const maxSnippet = 120

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// errorAt makes an error that points at a byte offset of the template.
func errorAt(src string, pos int, kind Kind, message string) *Error {
	e := &Error{Kind: kind, Message: message}
	e.locate(src, pos)
	return e
}

func (e *Error) locate(src string, pos int) {
	pos = min(max(pos, 0), len(src))
	start := strings.LastIndexByte(src[:pos], '\n') + 1
	e.Line = strings.Count(src[:start], "\n") + 1
	e.Column = utf8.RuneCountInString(src[start:pos]) + 1
	e.Snippet = src[start:]
	if end := strings.IndexByte(e.Snippet, '\n'); end >= 0 {
		e.Snippet = e.Snippet[:end]
	}
}

// fail ends the evaluation with a panic, so that a filter in a loop in a macro needs no plumbing.
// Parse and Execute recover it; no panic leaves the package.
func fail(kind Kind, format string, args ...any) {
	panic(&Error{Kind: kind, Message: fmt.Sprintf(format, args...)})
}

// recovered turns what a recover caught into the error to return. A panic without an *Error is a
// bug of this package or of a host function; it must not end the process.
func recovered(r any, src string, pos int) *Error {
	e, ok := r.(*Error)
	if !ok {
		e = &Error{Kind: KindRuntime, Message: fmt.Sprintf("internal error of the template engine: %v", r)}
	}
	if e.Line == 0 {
		e.locate(src, pos)
	}
	return e
}
