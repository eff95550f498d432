package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

var (
	reasonName  = regexp.MustCompile(`^([rR]eason|[eE]vent)[A-Z]`)
	reasonTitle = regexp.MustCompile(`^(Reasons|Events) of .*`)
	camelCase   = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
)

// reasonsPage describes the reasons of conditions and Events. They are constants in blocks whose
// comment begins with "Reasons of" or "Events of". Each constant has a comment of its own.
func reasonsPage(code []*source) (string, error) {
	type section struct{ title, text string }
	var sections []section
	for _, s := range code {
		for _, file := range s.files {
			for _, declared := range file.Decls {
				title, rows, err := s.reasons(declared)
				if err != nil {
					return "", fmt.Errorf("%s: %w", s.directory, err)
				}
				if rows == "" {
					continue
				}
				title, more, _ := strings.Cut(title, ". ")
				title = strings.TrimSuffix(title, ".")
				text := "\n## " + title + "\n\n"
				if more != "" {
					text += prose(more) + "\n"
				}
				if i := slices.IndexFunc(sections, func(is section) bool { return is.title == title }); i >= 0 {
					sections[i].text += rows
					continue
				}
				sections = append(sections, section{title, text + "| reason | meaning |\n|---|---|\n" + rows})
			}
		}
	}
	slices.SortFunc(sections, func(a, b section) int {
		return cmp.Or(cmp.Compare(b.title[0], a.title[0]), cmp.Compare(a.title, b.title)) // reasons of conditions first
	})
	var out strings.Builder
	out.WriteString(header("Conditions and Events", "This page lists the reasons that conditions and Events of Tarn have, with what each means and what you can do. `tarn explain` says which of them matters now."))
	for _, s := range sections {
		out.WriteString(s.text)
	}
	return out.String(), nil
}

// reasons gives the title and the rows for a declaration of reasons.
func (s *source) reasons(declared ast.Decl) (title, rows string, err error) {
	block, ok := declared.(*ast.GenDecl)
	if !ok {
		return "", "", nil
	}
	title = strings.Join(strings.Fields(block.Doc.Text()), " ")
	for _, spec := range constantsOf(declared) {
		name := spec.Names[0].Name
		if len(spec.Values) == 0 || !reasonName.MatchString(name) || strings.HasSuffix(name, "Action") {
			continue
		}
		reason := s.text(spec.Values[0])
		if !camelCase.MatchString(reason) {
			continue // defined by another package, and described there
		}
		doc := spec.Doc
		if doc == nil && !block.Lparen.IsValid() {
			doc = block.Doc
		}
		meaning := about(name, doc.Text())
		switch {
		case meaning == "":
			return "", "", fmt.Errorf("reason %s: say in a comment above %s what it means and what to do", reason, name)
		case block.Lparen.IsValid() && !reasonTitle.MatchString(title):
			return "", "", fmt.Errorf("reason %s: the comment of its block must begin with \"Reasons of\" or \"Events of\" and say which objects have them", reason)
		case !block.Lparen.IsValid():
			title = "Reasons of more than one kind"
		}
		rows += fmt.Sprintf("| %s`%s` | %s |\n", anchor(slug(s.directory[strings.LastIndex(s.directory, "/")+1:]+" "+reason)), reason, cell(meaning))
	}
	return title, rows, nil
}
