package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const width = 100 // columns of a line of prose

// header begins every page.
func header(title, purpose string) string {
	return "<!-- Made by `make generate`; do not edit. -->\n# " + title + "\n\n" + prose(purpose)
}

// These match the words of running text that are code: flags, variables, paths, fields and names in
// camel case.
var (
	literal = regexp.MustCompile(`^(--[a-z][a-z0-9-]*(=\S+)?|\$[A-Z_]{2,}|~?/[a-zA-Z.]\S*|[a-z0-9.]+\.[a-z]+/\S+|(spec|status|metadata)(\.[a-zA-Z]+)+|[a-z]+[A-Z][A-Za-z]*)$`)
	word    = regexp.MustCompile(`[^\s()'"]+`)
	spanned = regexp.MustCompile("`[^`]*`")
)

// code marks the code in running text, and escapes the rest so that Markdown does not interpret it.
func code(text string) string {
	markup := strings.NewReplacer("<", "&lt;", "*", `\*`, "|", `\|`)
	plain := func(text string) string {
		return word.ReplaceAllStringFunc(text, func(found string) string {
			bare := strings.TrimRight(found, ".,:;-")
			if literal.MatchString(bare) {
				return span(bare) + found[len(bare):]
			}
			return markup.Replace(found)
		})
	}
	var out strings.Builder
	for {
		at := spanned.FindStringIndex(text)
		if at == nil {
			return out.String() + plain(text)
		}
		out.WriteString(plain(text[:at[0]]) + strings.ReplaceAll(text[at[0]:at[1]], "|", `\|`))
		text = text[at[1]:]
	}
}

// cell is running text in one line, for a table's row.
func cell(text string) string { return code(strings.Join(strings.Fields(text), " ")) }

// span is one piece of code in a table's row.
func span(text string) string { return "`" + strings.ReplaceAll(text, "|", `\|`) + "`" }

// prose wraps the paragraphs of a text. Indented lines stay unchanged, as code.
func prose(text string) string {
	var out []string
	for _, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		var words []string
		var block []string
		for _, line := range strings.Split(paragraph, "\n") {
			if strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t") {
				block = append(block, line)
			} else {
				words = append(words, line)
			}
		}
		if len(words) > 0 {
			for _, part := range split(strings.Join(words, " ")) {
				out = append(out, wrap(cell(part), width))
			}
		}
		if len(block) > 0 {
			out = append(out, fence(strings.Join(block, "\n")))
		}
	}
	return strings.Join(out, "\n\n") + "\n"
}

// split breaks a paragraph that is too long for a page, at the end of a sentence.
func split(paragraph string) []string {
	words := strings.Fields(paragraph)
	if len(words) <= 80 {
		return []string{paragraph}
	}
	for i := len(words) / 2; i < len(words)-1; i++ {
		if strings.HasSuffix(words[i], ".") {
			return append([]string{strings.Join(words[:i+1], " ")}, split(strings.Join(words[i+1:], " "))...)
		}
	}
	return []string{paragraph}
}

func wrap(text string, width int) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

func fence(text string) string { return "```\n" + text + "\n```" }

// sentence makes a text begin with a capital and end with a full stop.
func sentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if text == "" {
		return ""
	}
	if first := strings.TrimRight(strings.Fields(text)[0], ".,:;-"); !literal.MatchString(first) {
		r, size := utf8.DecodeRuneInString(text)
		text = string(unicode.ToUpper(r)) + text[size:]
	}
	if !strings.ContainsAny(text[len(text)-1:], ".!?") {
		text += "."
	}
	return text
}

// anchor is a link target.
func anchor(id string) string { return fmt.Sprintf(`<a id="%s"></a>`, id) }

// slug is the anchor that GitHub gives a heading.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}
