package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxSyntaxErrors bounds the errors reported for one template, because each needs another
	// pass over the whole template.
	maxSyntaxErrors = 20
	// maxReread bounds the bytes that one Check reads again, for all templates together,
	// because the templates are not trusted.
	maxReread = 8 << 20
)

// Check returns the syntax errors of each string in object, with their paths. It evaluates
// nothing. An object is what Evaluate accepts.
//
// Errors are ordered by field, lists by index and maps by key, and then by place in the template.
// Of each tag only the first error is reported, and at most twenty of each template. An error that
// may only follow from an earlier one is left out, such as the end of a block whose beginning has
// an error. If Check stopped early, the last message says that there may be more.
func Check(object any) []*Error {
	c := &checker{reread: maxReread}
	c.value(object, 0)
	return c.errors
}

type checker struct {
	path   fieldPath
	errors []*Error
	reread int // bytes that further passes may read
}

func (c *checker) value(v any, depth int) {
	if depth > maxObjectDepth {
		c.errors = append(c.errors, &Error{Kind: KindLimit, Message: "the object is nested too deep", Path: c.path.String()})
		return
	}
	switch v := v.(type) {
	case string:
		for _, e := range c.syntaxErrors(v) {
			e.Path = c.path.String()
			c.errors = append(c.errors, e)
		}
	case map[string]any:
		for _, key := range sortedKeys(v) {
			c.path = append(c.path, key)
			c.value(v[key], depth+1)
			c.path = c.path[:len(c.path)-1]
		}
	case []any:
		for i := range v {
			c.path = append(c.path, i)
			c.value(v[i], depth+1)
			c.path = c.path[:len(c.path)-1]
		}
	}
}

// syntaxErrors parses a template until it finds no new error. It records a tag that has an error,
// and the next pass reads the simplest tag of the same role in its place. So the blocks around it
// stay paired.
func (c *checker) syntaxErrors(source string) []*Error {
	_, err := Parse(source)
	if err == nil {
		return nil
	}
	m := &mender{src: normalise(source), mended: map[int]mendedTag{}}
	more := true
	for more && len(m.errors) < maxSyntaxErrors && c.reread >= len(source) {
		c.reread -= len(source)
		more = m.read()
	}
	if len(m.errors) == 0 { // no further pass is allowed
		m.errors = []*Error{ownError(err)}
	}
	slices.SortStableFunc(m.errors, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if more {
		m.errors[len(m.errors)-1].Message += "; there may be more"
	}
	return m.errors
}

// span is where a tag is in the source, in bytes, with its delimiters. end is 0 until it is found.
type span struct{ start, end int }

// mendedTag replaces a tag that has an error: its tokens, none to skip the tag, and where the text
// continues.
type mendedTag struct {
	tokens []token
	end    int
}

type mender struct {
	src    string
	mended map[int]mendedTag
	errors []*Error
	// lost is true once a skipped tag may have begun or ended a block. From then on the ends
	// of blocks are uncertain.
	lost bool
	// maybe are tags that are assumed to begin a block, until its end proves missing.
	maybe []span
}

// read parses the template with the replacements so far and records the errors. It reports
// whether another pass is worthwhile.
func (m *mender) read() bool {
	lexer := newLexer(m.src)
	lexer.mended = m.mended
	p := &parser{src: m.src, lexer: lexer}
	_, err := p.template()
	if err == nil {
		return false
	}
	pos := offsetOf(m.src, err)
	tag, inTag := tagAt(lexer.spans, pos)
	for _, t := range slices.Concat(p.repeated, p.unknown) {
		if len(m.errors) == maxSyntaxErrors {
			return true
		}
		if p.whole || !inTag || t.pos < tag.start { // inside the tag with the error it may be part of an inline if, where it is allowed
			m.note(errorAt(m.src, t.pos, KindSyntax, t.text))
		}
	}
	if p.whole {
		return false
	}
	if p.unpaired && len(m.maybe) > 0 {
		last := len(m.maybe) - 1
		m.passOver(m.maybe[last].start, m.maybe[last].end)
		m.maybe = m.maybe[:last]
		return true
	}
	if taken := m.mended[pos]; p.unpaired && taken.tokens != nil { // the replacement is at fault, not the template
		m.passOver(pos, taken.end)
		return true
	}
	if !p.unpaired || !m.lost {
		m.note(err)
	}
	return err.Kind == KindSyntax && inTag && m.mend(tag, p.unpaired)
}

// note keeps an error unless an earlier pass found it.
func (m *mender) note(e *Error) {
	if !slices.ContainsFunc(m.errors, func(o *Error) bool { return *o == *e }) {
		m.errors = append(m.errors, e)
	}
}

func tagAt(tags []span, pos int) (span, bool) {
	i := slices.IndexFunc(tags, func(t span) bool { return t.start <= pos && (t.end == 0 || pos < t.end) })
	if i < 0 {
		return span{}, false
	}
	return tags[i], true
}

// passOver skips a tag, though it may begin or end a block.
func (m *mender) passOver(start, end int) {
	m.mended[start] = mendedTag{end: end}
	m.lost = true
}

// mend replaces a tag. It returns false if nothing can be known about the text after it.
func (m *mender) mend(tag span, unpaired bool) bool {
	closing := "}}"
	if m.src[tag.start+1] == '%' {
		closing = "%}"
	}
	if tag.end == 0 { // the error may hide its end from the lexer, as an extra quotation mark does
		n := strings.Index(m.src[tag.start+2:], closing)
		if n < 0 {
			return false
		}
		tag.end = tag.start + 2 + n + len(closing)
	}
	text := strings.TrimLeftFunc(strings.Trim(m.src[tag.start+2:tag.end-2], "+-"), isPythonSpace)
	name, rest := cutName(text)
	switch {
	case closing == "}}":
		m.mended[tag.start] = mendedTag{end: tag.end}
	case name == "raw": // its contents are not a template
		return false
	case unpaired:
		m.passOver(tag.start, tag.end)
	default:
		tokens, known := plainest(tag.start, name, rest)
		if name == "set" && tokens != nil {
			m.maybe = append(m.maybe, tag)
		}
		m.mended[tag.start] = mendedTag{tokens, tag.end}
		m.lost = m.lost || !known
	}
	return true
}

// cutName splits a tag into its name and the rest.
func cutName(text string) (name, rest string) {
	end := strings.IndexFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if end < 0 {
		return text, ""
	}
	return text[:end], strings.TrimLeftFunc(text[end:], isPythonSpace)
}

// plainest returns the tokens of the simplest valid tag with the same role as this one. known is
// false if the role is uncertain.
func plainest(pos int, name, rest string) (tokens []token, known bool) {
	switch name {
	case "print", "include", "import", "from", "extends":
		return nil, true
	case "set": // the form that assigns a value has no end
		if before, _, assigns := strings.Cut(rest, "="); assigns && !strings.Contains(before, "|") {
			return nil, true
		}
	case "else":
		if next, _ := cutName(rest); next == "if" { // as in other languages
			name = "elif"
		}
	case "block": // its end may name it
		own, _ := cutName(rest)
		return within(pos, name, token{kind: tokName, text: own}), true
	}
	if tail, ok := plainTags[name]; ok {
		return within(pos, name, tail...), true
	}
	if slices.Contains(blockEnds, name) {
		return within(pos, name), true
	}
	return nil, false
}

// within returns the tokens of a tag.
func within(pos int, name string, tail ...token) []token {
	tokens := append([]token{{kind: tokBlockBegin}, {kind: tokName, text: name}}, tail...)
	tokens = append(tokens, token{kind: tokBlockEnd})
	for i := range tokens {
		tokens[i].pos = pos
	}
	return tokens
}

// plainTags holds the simplest valid rest of each tag that begins a block or a branch.
var plainTags = map[string][]token{
	"if":         {{kind: tokInteger, text: "1"}},
	"elif":       {{kind: tokInteger, text: "1"}},
	"else":       {},
	"for":        {{kind: tokName, text: "_"}, {kind: tokName, text: "in"}, {kind: tokLBracket}, {kind: tokRBracket}},
	"with":       {},
	"set":        {{kind: tokName, text: "_"}},
	"macro":      {{kind: tokName, text: "_"}, {kind: tokLParen}, {kind: tokRParen}},
	"call":       {{kind: tokName, text: "_"}, {kind: tokLParen}, {kind: tokRParen}},
	"filter":     {{kind: tokName, text: "trim"}},
	"autoescape": {{kind: tokName, text: "false"}},
}

// blockEnds are the tags that end a block.
var blockEnds = []string{
	"endif", "endfor", "endwith", "endmacro", "endcall", "endfilter", "endblock", "endautoescape", "endset",
}

// offsetOf returns where in the source an error points, in bytes.
func offsetOf(src string, e *Error) int {
	pos := 0
	for range e.Line - 1 {
		pos += strings.IndexByte(src[pos:], '\n') + 1
	}
	for range e.Column - 1 {
		_, size := utf8.DecodeRuneInString(src[pos:])
		pos += size
	}
	return pos
}
