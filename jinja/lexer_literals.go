package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// number lexes an integer or a float, whichever takes more as Jinja's two
// patterns would: 1_000, 0x1f, 1.5, 1e3. A float never starts after a dot, so
// that a.1.5 is two subscripts.
func (l *lexer) number() {
	if l.pos == 0 || l.src[l.pos-1] != '.' {
		if end := floatEnd(l.src, l.pos); end > 0 {
			l.add(tokFloat, l.pos, strings.ReplaceAll(l.src[l.pos:end], "_", ""))
			l.pos = end
			return
		}
	}
	end := integerEnd(l.src, l.pos)
	l.add(tokInteger, l.pos, strings.ReplaceAll(l.src[l.pos:end], "_", ""))
	l.pos = end
}

// digitsEnd skips digits that single underscores may separate.
func digitsEnd(s string, p int, digit func(byte) bool) int {
	for p < len(s) {
		if digit(s[p]) {
			p++
		} else if s[p] == '_' && p+1 < len(s) && digit(s[p+1]) {
			p += 2
		} else {
			break
		}
	}
	return p
}

func isDecimal(c byte) bool { return c >= '0' && c <= '9' }
func isBinary(c byte) bool  { return c == '0' || c == '1' }
func isOctal(c byte) bool   { return c >= '0' && c <= '7' }
func isZero(c byte) bool    { return c == '0' }
func isHex(c byte) bool {
	return isDecimal(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func floatEnd(s string, p int) int {
	p = digitsEnd(s, p, isDecimal)
	isFloat := false
	if p+1 < len(s) && s[p] == '.' && isDecimal(s[p+1]) {
		p = digitsEnd(s, p+1, isDecimal)
		isFloat = true
	}
	if p < len(s) && (s[p] == 'e' || s[p] == 'E') {
		q := p + 1
		if q < len(s) && (s[q] == '+' || s[q] == '-') {
			q++
		}
		if q < len(s) && isDecimal(s[q]) {
			return digitsEnd(s, q, isDecimal)
		}
	}
	if isFloat {
		return p
	}
	return 0
}

func integerEnd(s string, p int) int {
	if s[p] != '0' {
		return digitsEnd(s, p, isDecimal)
	}
	if p+1 < len(s) {
		var digit func(byte) bool
		switch s[p+1] {
		case 'b', 'B':
			digit = isBinary
		case 'o', 'O':
			digit = isOctal
		case 'x', 'X':
			digit = isHex
		}
		if digit != nil {
			if end := digitsEnd(s, p+2, digit); end > p+2 {
				return end
			}
		}
	}
	return digitsEnd(s, p, isZero)
}

// str lexes a string literal and decodes its escapes.
func (l *lexer) str(quote byte) bool {
	start := l.pos
	p := start + 1
	escaped := false
	for p < len(l.src) && l.src[p] != quote {
		if l.src[p] == '\\' {
			escaped = true
			p++
		}
		p++
	}
	if p >= len(l.src) {
		return l.unexpected()
	}
	text := l.src[start+1 : p]
	l.pos = p + 1
	if escaped {
		decoded, message := unescape(text)
		if message != "" {
			return l.fail(start, "%s", message)
		}
		text = decoded
	}
	l.add(tokString, start, text)
	return true
}

var simpleEscapes = map[byte]byte{
	'\\': '\\', '\'': '\'', '"': '"', 'a': 7, 'b': 8, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11,
}

// unescape decodes the backslashes of a literal as Python's unicode-escape does.
func unescape(s string) (decoded, message string) {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			i++
			continue
		}
		i++
		c := s[i]
		if out, ok := simpleEscapes[c]; ok {
			b.WriteByte(out)
			i++
			continue
		}
		switch {
		case c == '\n':
			i++
		case isOctal(c):
			v := rune(0)
			for n := 0; n < 3 && i < len(s) && isOctal(s[i]); n++ {
				v = v*8 + rune(s[i]-'0')
				i++
			}
			b.WriteRune(v)
		case c == 'x' || c == 'u' || c == 'U':
			width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			v, ok := hexDigits(s, i+1, width)
			if !ok {
				return "", "truncated \\" + string(c) + strings.Repeat("X", width) + " escape"
			}
			if !utf8.ValidRune(v) {
				return "", "illegal Unicode character in a \\" + string(c) + " escape"
			}
			b.WriteRune(v)
			i += 1 + width
		case c == 'N':
			return "", "the escape \\N{...} for Unicode names is not available; write \\u or \\U"
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(s[i:])
			b.WriteString(asciiEscape(r))
			i += size
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
			i++
		}
	}
	return b.String(), ""
}

func hexDigits(s string, from, width int) (rune, bool) {
	if from+width > len(s) {
		return 0, false
	}
	v := rune(0)
	for _, c := range []byte(s[from : from+width]) {
		if !isHex(c) {
			return 0, false
		}
		v = v<<4 | rune(hexValue(c))
	}
	return v, true
}

func hexValue(c byte) int {
	switch {
	case c <= '9':
		return int(c - '0')
	case c >= 'a':
		return int(c-'a') + 10
	default:
		return int(c-'A') + 10
	}
}

// isPythonSpace is str.isspace for one character.
func isPythonSpace(r rune) bool {
	switch {
	case r < utf8.RuneSelf:
		return r == ' ' || r >= 9 && r <= 13 || r >= 28 && r <= 31
	case r == 0x85 || r == 0xa0:
		return true
	default:
		return r >= 0x1680 && unicode.Is(unicode.Z, r)
	}
}

func isIdentifier(s string) bool {
	for i, r := range s {
		start := r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r)
		if !start && (i == 0 || !unicode.IsDigit(r) && !unicode.Is(unicode.Mn, r) && !unicode.Is(unicode.Mc, r) && !unicode.Is(unicode.Pc, r)) {
			return false
		}
	}
	return s != ""
}
