package jinja

import (
	"fmt"
	"strings"
	"unicode/utf8"
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
	// Line and Column are 1-based and count characters in the template. For an
	// error in the text a template made, of KindYAML, they point at where the
	// template set yaml. They are 0 where there is no template to point into.
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

// Detail gives the error on several lines: the message, the offending line of
// the template, and a caret under the offending column.
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

// Unwrap gives the error of a host function or of the context.
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

// fail ends the evaluation. Inside the package errors travel as panics with an
// *Error, so that a filter in a loop in a macro needs no plumbing; Parse and
// Execute recover them, and nothing else leaves the package.
func fail(kind Kind, format string, args ...any) {
	panic(&Error{Kind: kind, Message: fmt.Sprintf(format, args...)})
}

// recovered turns what a recover caught into the error to return. A panic that
// is not ours is a bug of this package; it must not take the process along.
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
