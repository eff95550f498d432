package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokError
	tokData
	tokVariableBegin
	tokVariableEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInteger
	tokFloat
	tokAdd
	tokSub
	tokMul
	tokDiv
	tokFloorDiv
	tokMod
	tokPow
	tokTilde
	tokLBracket
	tokRBracket
	tokLParen
	tokRParen
	tokLBrace
	tokRBrace
	tokEq
	tokNe
	tokGt
	tokGtEq
	tokLt
	tokLtEq
	tokAssign
	tokDot
	tokColon
	tokPipe
	tokComma
	tokSemicolon
)

// tokenNames are the words error messages use, the same as Jinja's.
var tokenNames = [...]string{
	tokEOF: "end of template", tokError: "error", tokData: "template data / text",
	tokVariableBegin: "begin of print statement", tokVariableEnd: "end of print statement",
	tokBlockBegin: "begin of statement block", tokBlockEnd: "end of statement block",
	tokName: "name", tokString: "string", tokInteger: "integer", tokFloat: "float",
	tokAdd: "+", tokSub: "-", tokMul: "*", tokDiv: "/", tokFloorDiv: "//", tokMod: "%", tokPow: "**", tokTilde: "~",
	tokLBracket: "[", tokRBracket: "]", tokLParen: "(", tokRParen: ")", tokLBrace: "{", tokRBrace: "}",
	tokEq: "==", tokNe: "!=", tokGt: ">", tokGtEq: ">=", tokLt: "<", tokLtEq: "<=", tokAssign: "=",
	tokDot: ".", tokColon: ":", tokPipe: "|", tokComma: ",", tokSemicolon: ";",
}

// token is one piece of a template; pos is a byte offset into the normalised source.
type token struct {
	kind tokenKind
	pos  int
	text string
}

func (t token) describe() string {
	if t.kind == tokName {
		return t.text
	}
	return tokenNames[t.kind]
}

// lexer cuts a template into tokens, a few at a time, as the parser asks for
// them. An error becomes a last token, so that the parser meets it in its place
// and an earlier syntax error comes first.
type lexer struct {
	src          string
	pos          int
	tokens       []token // lexed and not yet taken, from head on
	head         int
	tag          tokenKind // what ends the tag being lexed; tokEOF in text
	done         bool
	brackets     []byte // the closing brackets still owed
	lineStarting bool   // the last token ended with a newline

	mended map[int]mendedTag // by where they begin, tags to read as something else; nil outside Check
	spans  []span            // of the tags read so far; kept for Check alone
}

// normalise makes every newline a single \n and drops one at the very end.
func normalise(source string) string {
	if strings.IndexByte(source, '\r') >= 0 {
		source = strings.ReplaceAll(source, "\r\n", "\n")
		source = strings.ReplaceAll(source, "\r", "\n")
	}
	return strings.TrimSuffix(source, "\n")
}

func newLexer(src string) *lexer {
	return &lexer{src: src, lineStarting: true, tokens: make([]token, 0, 8)}
}

// peek returns the token n places ahead; past the end it is the last one.
func (l *lexer) peek(n int) token {
	for len(l.tokens)-l.head <= n && !l.done {
		l.more()
	}
	return l.tokens[min(l.head+n, len(l.tokens)-1)]
}

// take moves to the next token; the last one stays.
func (l *lexer) take() {
	l.peek(0)
	if l.head+1 < len(l.tokens) || !l.done {
		l.head++
	}
	if l.head == len(l.tokens) {
		l.tokens, l.head = l.tokens[:0], 0
	}
}

// more lexes at least one token.
func (l *lexer) more() {
	ok := true
	switch {
	case l.pos >= len(l.src):
		l.add(tokEOF, len(l.src), "")
		l.done = true
	case l.tag == tokEOF:
		ok = l.root()
	default:
		ok = l.inside()
	}
	l.done = l.done || !ok
}

func (l *lexer) add(kind tokenKind, pos int, text string) {
	l.tokens = append(l.tokens, token{kind, pos, text})
}

func (l *lexer) fail(pos int, format string, args ...any) bool {
	l.add(tokError, pos, fmt.Sprintf(format, args...))
	return false
}

// inside lexes the next token of a tag, its end among them; false ends the lexing.
func (l *lexer) inside() bool {
	for l.pos < len(l.src) {
		if len(l.brackets) == 0 && l.tagEnd(l.tag) {
			l.tag = tokEOF
			return true
		}
		c := l.src[l.pos]
		switch {
		case c == ' ' || c == '\n' || c == '\t':
			l.pos++
			continue
		case c >= '0' && c <= '9':
			l.number()
			return true
		case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			return l.name()
		case c == '"' || c == '\'':
			return l.str(c)
		case c >= ' ' && c < utf8.RuneSelf:
			return l.operator()
		}
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		if isPythonSpace(r) {
			l.pos += size
			continue
		}
		if unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r) {
			return l.name()
		}
		return l.unexpected()
	}
	return true
}

func (l *lexer) tagEnd(end tokenKind) bool {
	rest := l.src[l.pos:]
	closing := "%}"
	if end == tokVariableEnd {
		closing = "}}"
	}
	sign := byte(0)
	if len(rest) > 2 && (rest[0] == '-' || rest[0] == '+' && end == tokBlockEnd) && rest[1:3] == closing {
		sign = rest[0]
	} else if !strings.HasPrefix(rest, closing) {
		return false
	}
	l.add(end, l.pos, "")
	at := l.pos + 2
	if sign != 0 {
		at++
	}
	if l.mended != nil {
		l.spans[len(l.spans)-1].end = at
	}
	l.lineStarting = false
	l.closeTag(at, sign, end == tokBlockEnd)
	return true
}

func (l *lexer) unexpected() bool {
	r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
	return l.fail(l.pos, "unexpected char %s at %d", reprString(string(r)), utf8.RuneCountInString(l.src[:l.pos]))
}

func (l *lexer) name() bool {
	start := l.pos
	for l.pos < len(l.src) {
		c := l.src[l.pos]
		if c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			l.pos++
			continue
		}
		if c < utf8.RuneSelf {
			break
		}
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r) && !unicode.Is(unicode.N, r) {
			break
		}
		l.pos += size
	}
	text := l.src[start:l.pos]
	if text[0] >= utf8.RuneSelf && !isIdentifier(text) {
		return l.fail(start, "Invalid character in identifier")
	}
	l.add(tokName, start, text)
	return true
}

// operators with two characters; the rest are in singles.
var doubles = map[string]tokenKind{
	"//": tokFloorDiv, "**": tokPow, "==": tokEq, "!=": tokNe, ">=": tokGtEq, "<=": tokLtEq,
}

var singles = [128]tokenKind{
	'+': tokAdd, '-': tokSub, '/': tokDiv, '*': tokMul, '%': tokMod, '~': tokTilde,
	'[': tokLBracket, ']': tokRBracket, '(': tokLParen, ')': tokRParen, '{': tokLBrace, '}': tokRBrace,
	'>': tokGt, '<': tokLt, '=': tokAssign, '.': tokDot, ':': tokColon, '|': tokPipe, ',': tokComma, ';': tokSemicolon,
}

func (l *lexer) operator() bool {
	c := l.src[l.pos]
	if l.pos+1 < len(l.src) {
		if second := l.src[l.pos+1]; second == '=' || second == c {
			if kind, ok := doubles[l.src[l.pos:l.pos+2]]; ok {
				l.add(kind, l.pos, "")
				l.pos += 2
				return true
			}
		}
	}
	kind := singles[c&127]
	if kind == tokEOF {
		return l.unexpected()
	}
	switch c {
	case '(':
		l.brackets = append(l.brackets, ')')
	case '[':
		l.brackets = append(l.brackets, ']')
	case '{':
		l.brackets = append(l.brackets, '}')
	case ')', ']', '}':
		n := len(l.brackets)
		if n == 0 {
			return l.fail(l.pos, "unexpected '%c'", c)
		}
		if want := l.brackets[n-1]; want != c {
			return l.fail(l.pos, "unexpected '%c', expected '%c'", c, want)
		}
		l.brackets = l.brackets[:n-1]
	}
	l.add(kind, l.pos, "")
	l.pos++
	return true
}
