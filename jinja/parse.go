package jinja

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxNesting bounds blocks within blocks and brackets within brackets, and
// maxExprDepth the height of one expression's tree, so that neither parsing
// nor evaluating can exhaust the stack.
const (
	maxNesting   = 100
	maxExprDepth = 400
)

// parser turns tokens into nodes by recursive descent, in the order and with
// the messages of Jinja's own parser. An error is a panic with an *Error, which Parse recovers.
type parser struct {
	src     string
	lexer   *lexer
	nesting int
	height  int // of the expression parsed last

	endStack []string // the tags that end the open blocks, for messages
	tagStack []string
	soft     bool // inside an if: unknown filters are errors only when reached
	loops    int  // open for statements
	blocks   map[string]*blockStmt
	macros   []*macroDef // open macros and call blocks
	repeated []token     // blocks whose name another one has
	unknown  []token     // filters and tests that do not exist
	read     []string    // names read, and names assigned, anywhere
	written  []string
	paths    map[string]int // how often each path is read, and no key below it

	whole    bool // the end was reached
	unpaired bool // it failed at a block that is not closed, or at the end of one that is not open
}

func parseTemplate(source string) (*Template, error) {
	src := normalise(source)
	t, err := (&parser{src: src, lexer: newLexer(src)}).template()
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (p *parser) template() (t *Template, err *Error) {
	defer func() {
		if r := recover(); r != nil {
			err = recovered(r, p.src, 0)
			t = nil
		}
	}()
	if i := invalidUTF8(p.src); i >= 0 {
		p.failAt(i, "the template is not valid UTF-8")
	}
	p.paths = map[string]int{}
	body := p.subparse("", nil)
	p.whole = true
	if late := slices.Concat(p.repeated, p.unknown); len(late) > 0 {
		p.failAt(late[0].pos, "%s", late[0].text)
	}
	return &Template{source: p.src, body: body, blocks: p.blocks, read: sortedNames(p.read), written: p.written, paths: p.paths}, nil
}

func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return i
			}
		}
	}
	return -1
}

// cur returns the current token; a lexer's error surfaces here.
func (p *parser) cur() token { return p.peek(0) }

// look returns the token after the current one.
func (p *parser) look() token { return p.peek(1) }

func (p *parser) peek(n int) token {
	t := p.lexer.peek(n)
	if t.kind == tokError {
		p.failAt(t.pos, "%s", t.text)
	}
	return t
}

func (p *parser) next() token {
	t := p.cur()
	p.lexer.take()
	return t
}

func (p *parser) isName(name string) bool {
	t := p.cur()
	return t.kind == tokName && t.text == name
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skip(kind tokenKind) bool {
	if p.cur().kind == kind {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(kind tokenKind) token {
	t := p.cur()
	if t.kind != kind {
		p.expected(t, tokenNames[kind])
	}
	return p.next()
}

func (p *parser) expectName(name string) token {
	t := p.cur()
	if t.kind != tokName || t.text != name {
		p.expected(t, name)
	}
	return p.next()
}

func (p *parser) expected(t token, want string) {
	if t.kind == tokEOF {
		p.failAt(t.pos, "unexpected end of template, expected '%s'.", want)
	}
	p.failAt(t.pos, "expected token '%s', got '%s'", want, t.describe())
}

func (p *parser) failAt(pos int, format string, args ...any) {
	panic(errorAt(p.src, pos, KindSyntax, fmt.Sprintf(format, args...)))
}

func (p *parser) enter(pos int) {
	p.nesting++
	if p.nesting > maxNesting {
		panic(errorAt(p.src, pos, KindLimit, fmt.Sprintf("nested more than %d levels deep", maxNesting)))
	}
}

func (p *parser) leave() { p.nesting-- }

// grow sets the height of a node from its tallest part.
func (p *parser) grow(pos, tallest int) {
	p.height = tallest + 1
	if p.height > maxExprDepth {
		panic(errorAt(p.src, pos, KindLimit, fmt.Sprintf("an expression has more than %d operations within one another", maxExprDepth)))
	}
}

// without returns the names of read that are not in written, sorted.
func sortedNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// subparse parses text and tags until a tag named in ends, which it leaves
// current; without ends, until the end of the template.
func (p *parser) subparse(tag string, ends []string) []stmt {
	var body []stmt
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if ends != nil {
				p.failUnclosed(t.pos, "")
			}
			return body
		case tokData:
			body = append(body, &textStmt{t.text})
			p.next()
		case tokVariableBegin:
			p.next()
			pos := p.cur().pos
			value := p.tuple(tupleOptions{cond: true})
			p.expect(tokVariableEnd)
			body = append(body, &outputStmt{pos, value})
		case tokBlockBegin:
			p.next()
			if name := p.cur(); name.kind == tokName {
				for _, end := range ends {
					if name.text == end {
						return body
					}
				}
			}
			if s := p.statement(); s != nil {
				body = append(body, s...)
			}
			p.expect(tokBlockEnd)
		default:
			p.failAt(t.pos, "unexpected %s", reprString(t.describe()))
		}
	}
}

// statements parses the body of the tag just read, up to one of ends.
func (p *parser) statements(ends ...string) []stmt {
	p.skip(tokColon)
	p.expect(tokBlockEnd)
	p.enter(p.cur().pos)
	p.endStack = append(p.endStack, strings.Join(ends, " "))
	body := p.subparse("", ends)
	p.endStack = p.endStack[:len(p.endStack)-1]
	p.leave()
	return body
}

// innerStatements is statements for a body with its own variables.
func (p *parser) innerStatements(ends ...string) []stmt {
	soft := p.soft
	p.soft = false
	body := p.statements(ends...)
	p.soft = soft
	return body
}

// failUnclosed reports an unknown tag, or the end of the template when name is empty.
func (p *parser) failUnclosed(pos int, name string) {
	message := "Unexpected end of template."
	p.unpaired = name == "" || innerTag(name)
	if name != "" {
		message = fmt.Sprintf("Encountered unknown tag '%s'.", name)
	}
	if n := len(p.endStack); n > 0 {
		looking := "'" + strings.ReplaceAll(p.endStack[n-1], " ", "' or '") + "'"
		known := false
		for _, ends := range p.endStack {
			known = known || name != "" && strings.Contains(" "+ends+" ", " "+name+" ")
		}
		if known {
			message += " You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for " + looking + "."
		} else {
			message += " Jinja was looking for the following tags: " + looking + "."
		}
	}
	if n := len(p.tagStack); n > 0 {
		message += fmt.Sprintf(" The innermost block that needs to be closed is '%s'.", p.tagStack[n-1])
	}
	p.failAt(pos, "%s", message)
}

// innerTag says that a tag of this name stands within a block or ends one.
func innerTag(name string) bool {
	return name == "else" || name == "elif" || strings.HasPrefix(name, "end")
}
