package rules

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Limits for the prose in Markdown. One sentence in 20 may be long; none may be endless.
const (
	longSentence, endlessSentence = 30, 45 // words
	longParagraph                 = 90     // words
	widestLine                    = 100    // characters
)

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	linkText = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	address  = regexp.MustCompile(`https?://\S+`)
	listItem = regexp.MustCompile(`^([-*]|\d+\.) `)
	fullStop = regexp.MustCompile(`[.!?]\s+[A-Z"(]`)
)

// passage is a paragraph or an item of a list, with its first line's number.
type passage struct {
	line int
	text string
}

// passagesOf gives the running text of a Markdown file: no code, no tables, no headings.
func passagesOf(text string) []passage {
	var found []passage
	var now passage
	end := func() {
		if now.text != "" {
			found = append(found, now)
		}
		now = passage{}
	}
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
			end()
			continue
		case fenced, strings.HasPrefix(line, "    ") && now.text == "":
			continue
		case trimmed == "", strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "|"), strings.HasPrefix(trimmed, "---"), strings.HasPrefix(trimmed, "<"):
			end()
			continue
		case listItem.MatchString(trimmed):
			end()
			trimmed = listItem.ReplaceAllString(trimmed, "")
		}
		if now.text == "" {
			now.line = i + 1
		}
		now.text = strings.TrimSpace(now.text + " " + trimmed)
	}
	end()
	return found
}

// sentencesOf gives the sentences of a passage. Each piece of code or link becomes one word.
func sentencesOf(text string) []string {
	text = codeSpan.ReplaceAllString(text, "code")
	text = linkText.ReplaceAllString(text, "$1")
	text = address.ReplaceAllString(text, "link")
	var sentences []string
	for {
		at := fullStop.FindStringIndex(text)
		if at == nil {
			return append(sentences, text)
		}
		sentences, text = append(sentences, text[:at[0]+1]), strings.TrimSpace(text[at[0]+1:])
	}
}

// isPage reports whether a file is a page for readers. Those of benchmarks are only notes on
// figures.
func isPage(name string) bool {
	return strings.HasSuffix(name, ".md") && !strings.HasPrefix(name, "bench/")
}

// plainProse rejects documentation that is hard to understand at the first reading.
func plainProse(files []file) []string {
	var wrong, long []string
	sentences := 0
	for _, f := range files {
		if !isPage(f.name) {
			continue
		}
		for _, p := range passagesOf(string(f.text)) {
			at := fmt.Sprintf("%s:%d", f.name, p.line)
			if n := len(strings.Fields(p.text)); n > longParagraph {
				wrong = append(wrong, fmt.Sprintf("%s: a paragraph of %d words; at most %d", at, n, longParagraph))
			}
			spoken := linkText.ReplaceAllString(codeSpan.ReplaceAllString(p.text, ""), "$1")
			for _, r := range retired {
				if found := r.words.FindString(spoken); r.pages && found != "" {
					wrong = append(wrong, fmt.Sprintf("%s: says %q; say %s", at, found, r.better))
				}
			}
			for _, sentence := range sentencesOf(p.text) {
				sentences++
				if n := len(strings.Fields(sentence)); n > endlessSentence {
					wrong = append(wrong, fmt.Sprintf("%s: a sentence of %d words; at most %d", at, n, endlessSentence))
				} else if n > longSentence {
					long = append(long, fmt.Sprintf("%s: a sentence of %d words, and 1 in 20 has over %d", at, n, longSentence))
				}
			}
		}
		wrong = append(wrong, wideLines(f)...)
	}
	if len(long)*20 > sentences {
		wrong = append(wrong, long...)
	}
	return wrong
}

// plainComments keeps comments readable: of their sentences 3 in 100 may be long.
func plainComments(files []file) []string {
	var long []string
	sentences := 0
	for _, f := range goFiles(files) {
		if f.generated {
			continue
		}
		for _, group := range f.syntax.Comments {
			text := group.Text()
			if strings.Contains(text, "\t") || strings.Contains(text, "-->") || strings.Contains(text, "  ") {
				continue // a diagram, or code
			}
			for _, p := range passagesOf(text) {
				for _, sentence := range sentencesOf(p.text) {
					sentences++
					if n := len(strings.Fields(sentence)); n > longSentence {
						long = append(long, fmt.Sprintf("%s: a sentence of %d words, and 3 in 100 have over %d", f.at(group), n, longSentence))
					}
				}
			}
		}
	}
	if len(long)*100 > sentences*3 {
		return long
	}
	return nil
}

// wideLines gives the lines of running text that are too wide for a terminal.
func wideLines(f file) []string {
	var wrong []string
	fenced := false
	for i, line := range strings.Split(string(f.text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "|") || strings.Contains(line, "](") || strings.HasPrefix(line, "<") {
			continue // code, tables and links cannot be wrapped
		}
		if n := utf8.RuneCountInString(line); n > widestLine {
			wrong = append(wrong, fmt.Sprintf("%s:%d: a line of %d characters; at most %d", f.name, i+1, n, widestLine))
		}
	}
	return wrong
}
