package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// percent is Python's text % values.
func (e *evaluator) percent(format string, values any) string {
	p := &percentFormat{e: e, format: format, values: norm(values)}
	p.positional = []any{p.values}
	switch v := p.values.(type) {
	case tuple, *group:
		p.positional, _ = sequence(v)
	case string:
	case *dict, map[string]any, []any, *undefined, rangeValue, textBytes:
		p.mapping = true // may be left unused
	}
	p.run()
	if p.used < len(p.positional) && !p.mapping {
		fail(KindType, "not all arguments converted during string formatting")
	}
	e.text(p.out.Len())
	return p.out.String()
}

type percentFormat struct {
	e          *evaluator
	format     string
	at         int
	values     any
	mapping    bool
	positional []any
	used       int
	out        strings.Builder
}

func (p *percentFormat) run() {
	for p.at < len(p.format) {
		i := strings.IndexByte(p.format[p.at:], '%')
		if i < 0 {
			p.out.WriteString(p.format[p.at:])
			return
		}
		p.out.WriteString(p.format[p.at : p.at+i])
		p.at += i + 1
		p.one()
		p.e.step()
		p.e.checkSize(p.out.Len())
	}
}

func (p *percentFormat) peek() byte {
	if p.at >= len(p.format) {
		fail(KindValue, "incomplete format")
	}
	return p.format[p.at]
}

func (p *percentFormat) arg() any {
	if p.used >= len(p.positional) {
		fail(KindType, "not enough arguments for format string")
	}
	p.used++
	return norm(p.positional[p.used-1])
}

// one handles what follows a percent sign.
func (p *percentFormat) one() {
	if p.peek() == '%' {
		p.at++
		p.out.WriteByte('%')
		return
	}
	var keyed any
	isKeyed := p.peek() == '('
	if isKeyed {
		keyed = p.key()
	}
	f := formatSpec{fill: " ", precision: -1}
	left, zero := false, false
flags:
	for {
		switch c := p.peek(); c {
		case '-':
			left = true
		case '+':
			f.sign = '+'
		case ' ':
			if f.sign == 0 {
				f.sign = ' '
			}
		case '#':
			f.alt = true
		case '0':
			zero = true
		default:
			break flags
		}
		p.at++
	}
	if f.width = p.count("width"); f.width < 0 {
		left, f.width = true, -f.width
	}
	if p.peek() == '.' {
		p.at++
		f.precision = max(p.count("prec"), 0)
	}
	for strings.IndexByte("hlL", p.peek()) >= 0 {
		p.at++
	}
	f.kind = p.peek()
	p.at++
	switch {
	case left:
		f.align = '<'
	case zero:
		f.align = '0'
		f.fill = "0"
	default:
		f.align = '>'
	}
	if !isKeyed {
		keyed = p.arg()
	}
	p.out.WriteString(p.convert(keyed, f))
}

// key reads (name) and looks it up.
func (p *percentFormat) key() any {
	if _, isTuple := p.values.(tuple); isTuple || !p.mapping {
		fail(KindType, "format requires a mapping")
	}
	start, open := p.at+1, 1
	for p.at++; open > 0; p.at++ {
		if p.at >= len(p.format) {
			fail(KindValue, "incomplete format key")
		}
		switch p.format[p.at] {
		case '(':
			open++
		case ')':
			open--
		}
	}
	name := p.format[start : p.at-1]
	mustDefined(p.values)
	m, ok := asMapping(p.values)
	if !ok {
		fail(KindType, "format requires a mapping")
	}
	p.used = len(p.positional)
	v, ok := m.get(p.e, name)
	if !ok {
		fail(KindLookup, "the key %s does not exist", shortRepr(name))
	}
	return v
}

// count reads a width or precision: digits, or * for the next argument.
func (p *percentFormat) count(what string) int {
	if p.peek() == '*' {
		p.at++
		n, ok := p.arg().(int)
		if !ok {
			fail(KindType, "* wants int")
		}
		return min(max(n, -math.MaxInt32), math.MaxInt32)
	}
	n := 0
	for c := p.peek(); isDecimal(c); c = p.peek() {
		n = n*10 + int(c-'0')
		if n > math.MaxInt32 {
			fail(KindValue, "%s too big", what)
		}
		p.at++
	}
	return n
}

func (p *percentFormat) convert(v any, f formatSpec) string {
	switch f.kind {
	case 's', 'r', 'a':
		var s string
		switch f.kind {
		case 's':
			s = p.e.str(v)
		case 'r':
			s = p.e.repr(v)
		default:
			s = asciiOnly(p.e.repr(v))
		}
		if f.precision >= 0 {
			s = firstRunes(s, f.precision)
		}
		return p.textAlign(s, f)
	case 'c':
		return p.textAlign(p.char(v), f)
	case 'd', 'i', 'u', 'o', 'x', 'X':
		return p.integer(v, f)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		return p.float(v, f)
	}
	r, _ := utf8.DecodeRuneInString(p.format[p.at-1:])
	fail(KindValue, "unsupported format character '%c' (0x%x) at index %d", r, r, utf8.RuneCountInString(p.format[:p.at-1]))
	return ""
}

// textAlign pads with blanks, whatever the flag 0 says.
func (p *percentFormat) textAlign(s string, f formatSpec) string {
	f.fill = " "
	return p.e.align(s, f)
}

func (p *percentFormat) char(v any) string {
	switch v := v.(type) {
	case string:
		if runeLen(v) == 1 {
			return v
		}
	case int, bool, *big.Int:
		n := toSmall(v)
		if n < 0 || n > utf8.MaxRune || classOf(v) == bigInt {
			fail(KindLimit, "%%c arg not in range(0x110000)")
		}
		return string(rune(n))
	}
	fail(KindType, "%%c requires int or char")
	return ""
}

func (p *percentFormat) integer(v any, f formatSpec) string {
	kind := f.kind
	if fl, ok := v.(float64); ok && (kind == 'd' || kind == 'i' || kind == 'u') {
		v = intOfFloat(fl)
	}
	if u, ok := v.(*undefined); ok && kind != 'o' && kind != 'x' && kind != 'X' {
		u.fail()
	}
	if c := classOf(v); c != smallInt && c != bigInt {
		want := "a real number"
		if kind == 'o' || kind == 'x' || kind == 'X' {
			want = "an integer"
		}
		fail(KindType, "%%%c format: %s is required, not %s", kind, want, typeName(v))
	}
	n := toBig(v)
	base, prefix := 10, ""
	switch kind {
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0"+string(kind)
	}
	if !f.alt {
		prefix = ""
	}
	var digits string
	if base == 10 {
		digits = strings.TrimPrefix(p.e.formatBig(n), "-")
	} else {
		p.e.text(n.BitLen())
		digits = new(big.Int).Abs(n).Text(base)
	}
	if kind == 'X' {
		digits = strings.ToUpper(digits)
	}
	if missing := f.precision - len(digits); missing > 0 {
		p.e.pad(missing, 1)
		digits = strings.Repeat("0", missing) + digits
	}
	return p.e.number(n.Sign() < 0, prefix, digits, "", f)
}

// intOfFloat cuts a float to an integer, as int() does.
func intOfFloat(f float64) any {
	if math.IsNaN(f) {
		fail(KindValue, "cannot convert float NaN to integer")
	}
	if math.IsInf(f, 0) {
		fail(KindLimit, "cannot convert float infinity to integer")
	}
	n, _ := intFromFloat(math.Trunc(f))
	return n
}

func (p *percentFormat) float(v any, f formatSpec) string {
	mustDefined(v)
	if !isNumber(v) {
		fail(KindType, "must be real number, not %s", typeName(v))
	}
	x := toFloat(v)
	text := p.e.floatText(math.Abs(x), f.kind, f.precision, f.alt)
	return p.e.number(math.Signbit(x) && !math.IsNaN(x), "", text, "", f)
}

func asciiOnly(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			b.WriteString(asciiEscape(r))
		}
	}
	return b.String()
}
