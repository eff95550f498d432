package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// level says how bad a finding is.
type level string

// The levels.
const (
	// levelError: the provisioner is refused, or cannot work.
	levelError level = "error"
	// levelWarning: it is accepted and is probably not what was meant.
	levelWarning level = "warning"
	// levelNote: nothing is wrong; something to know.
	levelNote level = "note"
)

// finding is one thing to say about a manifest.
type finding struct {
	Level level  `json:"level"`
	File  string `json:"file"`
	// Document is the number of the YAML document in the file, from 1.
	Document    int    `json:"document"`
	Provisioner string `json:"provisioner,omitempty"`
	// Field is the path, like spec.volumeStaging.podTemplate.
	Field string `json:"field,omitempty"`
	// Line and Column are those of the file, from 1; Column 0 means the whole line.
	Line   int `json:"line"`
	Column int `json:"column,omitempty"`
	// TemplateLine and TemplateColumn are those within the field's template, where
	// the finding is about a place in one.
	TemplateLine   int    `json:"templateLine,omitempty"`
	TemplateColumn int    `json:"templateColumn,omitempty"`
	Message        string `json:"message"`
	// snippet is the line of the template with a caret below.
	snippet string
}

type findings []finding

// only gives the findings of a level.
func (list findings) only(l level) findings {
	var kept findings
	for _, f := range list {
		if f.Level == l {
			kept = append(kept, f)
		}
	}
	return kept
}

// sorted orders findings as they stand in the files, and drops repetitions: an
// anchor used twice is one place.
func (list findings) sorted() findings {
	order := map[string]int{}
	for _, f := range list {
		if _, known := order[f.File]; !known {
			order[f.File] = len(order)
		}
	}
	slices.SortStableFunc(list, func(a, b finding) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Document, b.Document),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(list, func(a, b finding) bool { return a == b })
}

// print writes the findings for people: file:line:column, as compilers do.
func (list findings) print(w io.Writer) {
	for _, f := range list {
		fmt.Fprintln(w, f)
	}
}

func (f finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:", f.File, f.Line)
	if f.Column > 0 {
		fmt.Fprintf(&b, "%d:", f.Column)
	}
	fmt.Fprintf(&b, " %s: ", f.Level)
	if f.Field != "" {
		b.WriteString(f.Field + ": ")
	}
	if f.TemplateLine > 1 {
		fmt.Fprintf(&b, "line %d of the template: ", f.TemplateLine)
	}
	b.WriteString(strings.ReplaceAll(f.Message, "\n", "\n    "))
	if f.snippet != "" {
		b.WriteString("\n" + f.snippet)
	}
	return b.String()
}
