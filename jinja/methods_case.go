package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

func caseMethods() []*methodDef {
	plain := func(name string, f func(string) string) *methodDef {
		return &methodDef{name: name, str: func(e *evaluator, s string, _ []any) any {
			e.text(len(s))
			return f(s)
		}}
	}
	test := func(name string, f func(string) bool) *methodDef {
		return &methodDef{name: name, str: func(e *evaluator, s string, _ []any) any { return f(s) }}
	}
	return []*methodDef{
		plain("upper", upper), plain("lower", lower), plain("casefold", casefold),
		plain("capitalize", capitalize), plain("title", title), plain("swapcase", swapcase),
		test("isalnum", all(func(r rune) bool { return unicode.IsLetter(r) || isNumeric(r) })),
		test("isalpha", all(unicode.IsLetter)),
		test("isascii", isASCII),
		test("isdecimal", all(unicode.IsDigit)),
		test("isdigit", all(isDigit)),
		test("isnumeric", all(isNumeric)),
		test("isidentifier", isIdentifier),
		test("islower", func(s string) bool { return cased(s, isLower, isUpper) }),
		test("isupper", func(s string) bool { return cased(s, isUpper, isLower) }),
		test("isspace", all(isPythonSpace)),
		test("isprintable", func(s string) bool { return s == "" || all(unicode.IsPrint)(s) }),
		test("istitle", isTitle),
		{name: "center", sig: takes(1, "width", "fillchar"), str: func(e *evaluator, s string, a []any) any { return e.justify(s, a, "center") }},
		{name: "ljust", sig: takes(1, "width", "fillchar"), str: func(e *evaluator, s string, a []any) any { return e.justify(s, a, "ljust") }},
		{name: "rjust", sig: takes(1, "width", "fillchar"), str: func(e *evaluator, s string, a []any) any { return e.justify(s, a, "rjust") }},
		{name: "zfill", sig: takes(1, "width"), str: strZfill},
		{name: "expandtabs", sig: named(0, "tabsize"), str: strExpandTabs},
	}
}

// all makes Python's "and there is at least one" test of a string.
func all(ok func(rune) bool) func(string) bool {
	return func(s string) bool {
		for _, r := range s {
			if !ok(r) {
				return false
			}
		}
		return s != ""
	}
}

func isDigit(r rune) bool {
	return unicode.IsDigit(r) || r == 0xb2 || r == 0xb3 || r == 0xb9 || r >= 0x2070 && r <= 0x2079 || r >= 0x2080 && r <= 0x2089 || r >= 0x2460 && r <= 0x2468
}

func isNumeric(r rune) bool { return unicode.IsNumber(r) }

func isLower(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) }
func isUpper(r rune) bool {
	return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r)
}

func cased(s string, want, refuse func(rune) bool) bool {
	some := false
	for _, r := range s {
		if refuse(r) || unicode.IsTitle(r) {
			return false
		}
		some = some || want(r)
	}
	return some
}

func isTitle(s string) bool {
	some, inWord := false, false
	for _, r := range s {
		switch {
		case isUpper(r) || unicode.IsTitle(r):
			if inWord {
				return false
			}
			some, inWord = true, true
		case isLower(r):
			if !inWord {
				return false
			}
		default:
			inWord = false
		}
	}
	return some
}

// Python maps a few letters to several; Go's tables map one to one.
var upperSpecial = strings.NewReplacer("ß", "SS", "ﬀ", "FF", "ﬁ", "FI", "ﬂ", "FL", "ﬃ", "FFI", "ﬄ", "FFL", "ﬅ", "ST", "ﬆ", "ST", "ŉ", "ʼN", "ǰ", "J̌")

func upper(s string) string {
	if !isASCII(s) {
		s = upperSpecial.Replace(s)
	}
	return strings.ToUpper(s)
}

// lower is str.lower; a capital sigma at the end of a word has its own small letter.
func lower(s string) string {
	if strings.ContainsRune(s, 'Σ') {
		var b strings.Builder
		for i, r := range s {
			if r == 'Σ' {
				writeLower(&b, s, i, r)
			} else {
				b.WriteRune(r)
			}
		}
		s = b.String()
	}
	return strings.ToLower(strings.ReplaceAll(s, dottedI, smallDottedI))
}

// The Turkish capital I with a dot becomes two characters, an i and a combining dot.
const (
	dottedI      = "\u0130"
	smallDottedI = "i\u0307"
)

// writeLower writes the small letter for r, which stands at s[i:].
func writeLower(b *strings.Builder, s string, i int, r rune) {
	switch string(r) {
	case dottedI:
		b.WriteString(smallDottedI)
	case "Σ":
		before, _ := utf8.DecodeLastRuneInString(s[:i])
		after, _ := utf8.DecodeRuneInString(s[i+len("Σ"):])
		if unicode.IsLetter(before) && !unicode.IsLetter(after) {
			b.WriteRune('ς')
		} else {
			b.WriteRune('σ')
		}
	default:
		b.WriteRune(unicode.ToLower(r))
	}
}

var foldSpecial = strings.NewReplacer("ß", "ss", "ẞ", "ss", "ς", "σ", "ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st", "ſ", "s", "µ", "μ")

func casefold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return foldSpecial.Replace(strings.ToLower(strings.ReplaceAll(s, dottedI, smallDottedI)))
}

// titleRune is the first letter of a word: ß becomes Ss.
func titleRune(b *strings.Builder, r rune) {
	if special := upperSpecial.Replace(string(r)); special != string(r) {
		first := []rune(special)
		b.WriteRune(first[0])
		b.WriteString(strings.ToLower(string(first[1:])))
		return
	}
	b.WriteRune(unicode.ToTitle(r))
}

func capitalize(s string) string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 {
			return b.String() + lower(s[i:])
		}
		titleRune(&b, r)
	}
	return b.String()
}

func title(s string) string {
	var b strings.Builder
	inWord := false
	for i, r := range s {
		isCased := isLower(r) || isUpper(r) || unicode.IsTitle(r)
		switch {
		case !isCased:
			b.WriteRune(r)
		case inWord:
			writeLower(&b, s, i, r)
		default:
			titleRune(&b, r)
		}
		inWord = isCased
	}
	return b.String()
}

func swapcase(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case isUpper(r):
			writeLower(&b, s, i, r)
		case isLower(r):
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// justify pads s to a width; the odd blank of center goes where Python puts it.
func (e *evaluator) justify(s string, a []any, how string) string {
	fill := " "
	if a[1] != absent {
		fill = needStr(a[1], "the fill character")
		if runeLen(fill) != 1 {
			fail(KindType, "The fill character must be exactly one character long")
		}
	}
	width := toIndex(a[0], how)
	n := width - runeLen(s)
	if n <= 0 {
		return s
	}
	left := 0
	switch how {
	case "rjust":
		left = n
	case "center":
		left = n/2 + n&width&1
	}
	return e.padded(s, left, n-left, fill)
}

// padded puts left and right times fill around s.
func (e *evaluator) padded(s string, left, right int, fill string) string {
	e.pad(left+right, len(fill))
	e.text(len(s))
	return strings.Repeat(fill, max(left, 0)) + s + strings.Repeat(fill, max(right, 0))
}

func strZfill(e *evaluator, s string, a []any) any {
	n := toIndex(a[0], "zfill") - runeLen(s)
	if n <= 0 {
		return s
	}
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	return sign + e.padded(s, n, 0, "0")
}

func strExpandTabs(e *evaluator, s string, a []any) any {
	size := 8
	if a[0] != absent {
		size = toIndex(a[0], "expandtabs")
	}
	var b strings.Builder
	column := 0
	for _, r := range s {
		switch r {
		case '\t':
			if size > 0 {
				n := size - column%size
				e.pad(n, 1)
				b.WriteString(strings.Repeat(" ", n))
				column += n
			}
		case '\n', '\r':
			b.WriteRune(r)
			column = 0
		default:
			b.WriteRune(r)
			column++
		}
	}
	e.text(b.Len())
	return b.String()
}

// digitValue returns the value of a decimal digit of any script, or -1. Digits
// come in runs of ten, so the value is the distance from the run's start.
func digitValue(r rune) int {
	if !unicode.IsDigit(r) {
		return -1
	}
	for _, run := range unicode.Nd.R16 {
		if r >= rune(run.Lo) && r <= rune(run.Hi) {
			return int(r-rune(run.Lo)) % 10
		}
	}
	for _, run := range unicode.Nd.R32 {
		if r >= rune(run.Lo) && r <= rune(run.Hi) {
			return int(r-rune(run.Lo)) % 10
		}
	}
	return -1
}
