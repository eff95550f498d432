package spec

import (
	"fmt"
	"strings"
)

// Problem is one thing to be mended in a file, or worth knowing about it.
type Problem struct {
	// Line and Column of the text it is about, from 1; 0 where the file has no lines,
	// as JSON sent by a program.
	Line, Column int
	// Key it is about, as volumes[1].size; empty for the file as a whole.
	Key string
	// Message says what is wrong and what to write instead.
	Message string
}

// String gives a problem as compilers do, without the name of the file.
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

// Problems are all that is wrong with a file, in its order.
type Problems []Problem

// Error gives every problem on a line of its own.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}
