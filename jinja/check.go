package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxSyntaxErrors is how many errors of one template are told: each costs a reading of
	// the whole, and who has mended so many looks again anyway.
	maxSyntaxErrors = 20
	// maxReread is how many bytes are read again in one Check, by all templates together:
	// what is checked is written by anybody.
	maxReread = 8 << 20
)

// Check gives the syntax errors of each string value of object, with their paths,
// ordered as the fields are, lists by index and maps by key, and then as they stand in
// the text: the first of each tag, and of each template no more than twenty. Of an error
// that may only follow from one before it, like the end of a block whose beginning cannot
// be read, nothing is said. Where more were not looked for, the last one says so.
func Check(object any) []*Error {
	c := &checker{reread: maxReread}
	c.value(object, 0)
	return c.errors
}

type checker struct {
	path   fieldPath
	errors []*Error
	reread int // bytes that may be read again
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

// syntaxErrors reads a template again and again: each time a tag cannot be read, it is
// taken down, and read the next time as the plainest tag that has the same part in the
// structure, so that what follows means what it did.
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
	if len(m.errors) == 0 { // nothing may be read again
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

// span is a tag's place in the source, in bytes, its brackets included; end is 0 while
// it has not been found.
type span struct{ start, end int }

// mendedTag is what a tag that cannot be read is taken for: tokens, none for a tag that
// is passed over, and where the text goes on.
type mendedTag struct {
	tokens []token
	end    int
}

type mender struct {
	src    string
	mended map[int]mendedTag
	errors []*Error
	// lost is true once a tag was passed over that may have begun or ended a block: where
	// blocks end is a guess from then on.
	lost bool
	// maybe are tags taken for the beginning of a block, until an end is found missing.
	maybe []span
}

// read reads the template with what is mended so far, notes the errors it meets, and
// says whether it is worth another reading.
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
		if p.whole || !inTag || t.pos < tag.start { // in the tag that cannot be read it may stand in an inline if, where it is none
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
	if taken := m.mended[pos]; p.unpaired && taken.tokens != nil { // what it is taken for is nobody's fault but this one's
		m.passOver(pos, taken.end)
		return true
	}
	if !p.unpaired || !m.lost {
		m.note(err)
	}
	return err.Kind == KindSyntax && inTag && m.mend(tag, p.unpaired)
}

// note keeps an error unless it is known from an earlier reading.
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

// passOver has a tag read as nothing, though it may begin or end a block.
func (m *mender) passOver(start, end int) {
	m.mended[start] = mendedTag{end: end}
	m.lost = true
}

// mend has a tag read as something else; false where nothing can be known of what comes
// after it.
func (m *mender) mend(tag span, unpaired bool) bool {
	closing := "}}"
	if m.src[tag.start+1] == '%' {
		closing = "%}"
	}
	if tag.end == 0 { // what is wrong with it may hide its end from the lexer, as a quotation mark too many does
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
	case name == "raw": // what it holds is no template
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

// cutName gives the name a tag begins with and what comes after it.
func cutName(text string) (name, rest string) {
	end := strings.IndexFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if end < 0 {
		return text, ""
	}
	return text[:end], strings.TrimLeftFunc(text[end:], isPythonSpace)
}

// plainest gives the tokens of a tag that can be read and has the same part in the
// structure as the one of this name; known is false where its part is not certain.
func plainest(pos int, name, rest string) (tokens []token, known bool) {
	switch name {
	case "print", "include", "import", "from", "extends":
		return nil, true
	case "set": // of its two forms the one that assigns a value has no end
		if before, _, assigns := strings.Cut(rest, "="); assigns && !strings.Contains(before, "|") {
			return nil, true
		}
	case "else":
		if next, _ := cutName(rest); next == "if" { // as other languages have it
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

// within gives the tokens of a tag.
func within(pos int, name string, tail ...token) []token {
	tokens := append([]token{{kind: tokBlockBegin}, {kind: tokName, text: name}}, tail...)
	tokens = append(tokens, token{kind: tokBlockEnd})
	for i := range tokens {
		tokens[i].pos = pos
	}
	return tokens
}

// plainTags holds, for each tag that begins a block or a branch, the plainest that can
// stand after its name.
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

// offsetOf is where in the source an error points, in bytes.
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
