package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// level says how serious a finding is.
type level string

// The levels.
const (
	// levelError: the provisioner is rejected, or cannot work.
	levelError level = "error"
	// levelWarning: the provisioner is accepted, but is probably not what its author intended.
	levelWarning level = "warning"
	// levelNote: nothing is wrong; the author should know it all the same.
	levelNote level = "note"
)

// finding is one error, warning or note about a manifest.
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
	// TemplateLine and TemplateColumn are positions within the field's template. They are set where
	// the finding is about a place in a template.
	TemplateLine   int    `json:"templateLine,omitempty"`
	TemplateColumn int    `json:"templateColumn,omitempty"`
	Message        string `json:"message"`
	// snippet is the line of the template, with a caret below the place.
	snippet string
}

type findings []finding

// only returns the findings of one level.
func (list findings) only(l level) findings {
	var kept findings
	for _, f := range list {
		if f.Level == l {
			kept = append(kept, f)
		}
	}
	return kept
}

// sorted returns the findings in the order of the files, without repetitions. An anchor that is
// used twice is one place, so it is reported once.
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

// print writes the findings as file:line:column, as compilers do.
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
