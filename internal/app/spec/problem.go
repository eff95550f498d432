package spec

import (
	"fmt"
	"strings"
)

// Problem is one error or warning about a file.
type Problem struct {
	// Line and Column of the text that it is about, from 1. They are 0 for JSON, which has no
	// lines.
	Line, Column int
	// Key it is about, as volumes[1].size; empty for the file as a whole.
	Key string
	// Message says what is wrong and what to write instead.
	Message string
}

// String returns a problem as compilers print it, without the name of the file.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", p.Line, p.Column)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are all problems of a file, in its order.
type Problems []Problem

// Error returns each problem on a line of its own.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}
