package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatSpec is a parsed format specification, [[fill]align][sign][z][#][0][width][grouping][.precision][type].
// The % operator fills in the same structure.
type formatSpec struct {
	fill      string
	align     byte // one of < > = ^, or 0
	sign      byte // one of - + and blank, or 0
	noNegZero bool
	alt       bool
	width     int
	group     byte // one of , _ or 0
	precision int  // -1: none
	kind      byte // 0: none
}

func parseSpec(s string) formatSpec {
	f := formatSpec{fill: " ", precision: -1}
	isAlign := func(i int) bool { return i < len(s) && strings.IndexByte("<>=^", s[i]) >= 0 }
	i, fillGiven := 0, false
	if _, size := utf8.DecodeRuneInString(s); size > 0 && isAlign(size) {
		f.fill, f.align, i = s[:size], s[size], size+1
		fillGiven = true
	} else if isAlign(0) {
		f.align, i = s[0], 1
	}
	has := func(set string) bool { return i < len(s) && strings.IndexByte(set, s[i]) >= 0 }
	if has("+- ") {
		f.sign = s[i]
		i++
	}
	if has("z") {
		f.noNegZero = true
		i++
	}
	if has("#") {
		f.alt = true
		i++
	}
	if has("0") {
		if !fillGiven {
			f.fill = "0"
		}
		if f.align == 0 {
			f.align = '0' // resolved by the type: = for numbers, < for text
		}
		i++
	}
	f.width, i = specNumber(s, i, 0)
	if has(",_") {
		f.group = s[i]
		i++
		if has(",_") {
			fail(KindValue, "Cannot specify both ',' and '_'.")
		}
	}
	if has(".") {
		if f.precision, i = specNumber(s, i+1, -1); f.precision < 0 {
			fail(KindValue, "Format specifier missing precision")
		}
	}
	if i < len(s) {
		f.kind = s[i]
		i++
	}
	if i < len(s) {
		fail(KindValue, "Invalid format specifier %s", reprString(s))
	}
	return f
}

// specNumber reads digits; without any it gives def.
func specNumber(s string, i, def int) (value, next int) {
	start := i
	for i < len(s) && isDecimal(s[i]) {
		i++
	}
	if i == start {
		return def, i
	}
	n, err := strconv.Atoi(s[start:i])
	if err != nil || n > math.MaxInt32 {
		fail(KindValue, "Too many decimal digits in format string")
	}
	return n, i
}

// format is Python's format(value, spec).
func (e *evaluator) format(v any, spec string) string {
	if spec == "" {
		return e.str(v)
	}
	switch v := norm(v).(type) {
	case string:
		return e.formatStr(v, parseSpec(spec))
	case int, bool, *big.Int:
		return e.formatInt(v, parseSpec(spec))
	case float64:
		return e.formatFloatSpec(v, parseSpec(spec), "float")
	default:
		fail(KindType, "unsupported format string passed to %s.__format__", typeName(v))
	}
	return ""
}

func (e *evaluator) formatStr(s string, f formatSpec) string {
	switch {
	case f.kind != 0 && f.kind != 's':
		failCode(f.kind, "str")
	case f.sign == ' ':
		fail(KindValue, "Space not allowed in string format specifier")
	case f.sign != 0:
		fail(KindValue, "Sign not allowed in string format specifier")
	case f.noNegZero:
		fail(KindValue, "Negative zero coercion (z) not allowed in format specifier with string presentation type")
	case f.alt:
		fail(KindValue, "Alternate form (#) not allowed in string format specifier")
	case f.group != 0:
		fail(KindValue, "Cannot specify '%c' with 's'.", f.group)
	case f.align == '=':
		fail(KindValue, "'=' alignment not allowed in string format specifier")
	}
	if f.precision >= 0 {
		s = firstRunes(s, f.precision)
	}
	if f.align == 0 || f.align == '0' {
		f.align = '<'
	}
	return e.align(s, f)
}

func failCode(kind byte, of string) {
	fail(KindValue, "Unknown format code '%c' for object of type '%s'", kind, of)
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// align pads finished text to the width.
func (e *evaluator) align(s string, f formatSpec) string {
	n := f.width - runeLen(s)
	if n <= 0 {
		return s
	}
	switch f.align {
	case '<':
		return e.padded(s, 0, n, f.fill)
	case '^':
		return e.padded(s, n/2, n-n/2, f.fill)
	}
	return e.padded(s, n, 0, f.fill)
}

func (e *evaluator) formatInt(v any, f formatSpec) string {
	if f.group != 0 && (f.kind == 'n' || f.kind == 'c') {
		fail(KindValue, "Cannot specify '%c' with '%c'.", f.group, f.kind)
	}
	switch f.kind {
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		return e.formatFloatSpec(toFloat(v), f, "int")
	case 0, 'c', 'd', 'n', 'b', 'o', 'x', 'X':
	default:
		failCode(f.kind, typeName(v))
	}
	if f.precision >= 0 {
		fail(KindValue, "Precision not allowed in integer format specifier")
	}
	if f.kind == 'c' {
		return e.formatChar(v, f)
	}
	if f.noNegZero {
		fail(KindValue, "Negative zero coercion (z) not allowed in format specifier with integer presentation type")
	}
	n := toBig(v)
	var digits, prefix string
	switch f.kind {
	case 'b', 'o', 'x', 'X':
		base := map[byte]int{'b': 2, 'o': 8, 'x': 16, 'X': 16}[f.kind]
		e.text(n.BitLen())
		digits = new(big.Int).Abs(n).Text(base)
		if f.alt {
			prefix = "0" + string(f.kind)
		}
		if f.kind == 'X' {
			digits = strings.ToUpper(digits)
		}
		if f.group == ',' {
			fail(KindValue, "Cannot specify ',' with '%c'.", f.kind)
		}
	default:
		digits = strings.TrimPrefix(e.formatBig(n), "-")
	}
	return e.number(n.Sign() < 0, prefix, digits, "", f)
}

func (e *evaluator) formatChar(v any, f formatSpec) string {
	if f.sign != 0 {
		fail(KindValue, "Sign not allowed with integer format specifier 'c'")
	}
	n := toSmall(v)
	if classOf(v) != smallInt || n < 0 || n > utf8.MaxRune {
		fail(KindLimit, "%%c arg not in range(0x110000)")
	}
	if f.align == 0 {
		f.align = '<'
	}
	return e.align(string(rune(n)), f)
}

// number assembles sign, prefix, grouped digits and the rest, and pads.
func (e *evaluator) number(negative bool, prefix, digits, rest string, f formatSpec) string {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case f.sign == '+' || f.sign == ' ':
		sign = string(f.sign)
	}
	zero := f.fill == "0" && (f.align == '=' || f.align == '0')
	if f.group != 0 {
		size := 3
		if f.kind == 'b' || f.kind == 'o' || f.kind == 'x' || f.kind == 'X' {
			size = 4
		}
		if room := f.width - len(sign) - len(prefix) - len(rest); zero && room > len(digits) {
			e.pad(room, 2)
			// as many digits as reach the width, never starting with a separator
			need := len(digits)
			for grouped(need, size) < room {
				need++
			}
			digits = strings.Repeat("0", need-len(digits)) + digits
		}
		digits = groupDigits(digits, f.group, size)
	}
	body := sign + prefix + digits + rest
	n := f.width - utf8.RuneCountInString(body)
	if n > 0 && (f.align == '=' || f.align == '0') {
		return sign + prefix + e.padded(digits+rest, n, 0, f.fill)
	}
	if f.align == 0 {
		f.align = '>'
	}
	e.text(len(body))
	return e.align(body, f)
}

// grouped is the width of n digits with their separators.
func grouped(n, size int) int { return n + (n-1)/size }

func groupDigits(digits string, sep byte, size int) string {
	var b strings.Builder
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%size == 0 {
			b.WriteByte(sep)
		}
		b.WriteByte(digits[i])
	}
	return b.String()
}

// formatFloatSpec formats a float, or an integer asked for as one.
func (e *evaluator) formatFloatSpec(v float64, f formatSpec, of string) string {
	kind := f.kind
	percent := ""
	switch kind {
	case 0, 'e', 'E', 'f', 'F', 'g', 'G', 'n':
	case '%':
		v *= 100
		kind, percent = 'f', "%"
	default:
		failCode(f.kind, of)
	}
	if kind == 'n' {
		if f.group != 0 {
			fail(KindValue, "Cannot specify '%c' with 'n'.", f.group)
		}
		kind = 'g'
	}
	text := e.floatText(math.Abs(v), kind, f.precision, f.alt)
	negative := math.Signbit(v) && !math.IsNaN(v)
	if f.noNegZero && strings.Trim(text, "0.") == "" {
		negative = false
	}
	digits := text
	for i := range len(text) {
		if !isDecimal(text[i]) {
			digits = text[:i]
			break
		}
	}
	f.kind = 0
	return e.number(negative, "", digits, text[len(digits):]+percent, f)
}

// floatText writes a float that is not negative in one of the forms e, f, g, or
// in Python's own for kind 0. A precision of -1 is the default.
func (e *evaluator) floatText(v float64, kind byte, precision int, alt bool) string {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		s := formatFloat(v)
		if kind == 'E' || kind == 'F' || kind == 'G' {
			return strings.ToUpper(s)
		}
		return s
	}
	if kind == 0 && precision < 0 {
		s := formatFloat(v)
		if alt && strings.IndexByte(s, '.') < 0 {
			s = strings.Replace(s, "e", ".e", 1)
		}
		return s
	}
	if precision < 0 {
		precision = 6
	}
	e.pad(precision+1, 1)
	var s string
	switch kind {
	case 'e', 'E':
		s = strconv.FormatFloat(v, 'e', precision, 64)
		if alt && precision == 0 {
			s = strings.Replace(s, "e", ".e", 1)
		}
	case 'f', 'F':
		s = strconv.FormatFloat(v, 'f', precision, 64)
		if alt && precision == 0 {
			s += "."
		}
	default:
		s = generalText(v, max(precision, 1), alt, kind == 0)
	}
	if kind == 'E' || kind == 'G' {
		s = strings.ToUpper(s)
	}
	return s
}

// generalText is the form g: fixed or with an exponent, whichever is shorter.
func generalText(v float64, precision int, alt, dotZero bool) string {
	s := strconv.FormatFloat(v, 'e', precision-1, 64)
	at := strings.IndexByte(s, 'e')
	exp, _ := strconv.Atoi(s[at+1:])
	limit := precision
	if dotZero {
		limit--
	}
	tail := ""
	if exp < -4 || exp >= limit {
		s, tail = s[:at], s[at:]
	} else {
		s = strconv.FormatFloat(v, 'f', max(precision-1-exp, 0), 64)
	}
	if !alt && strings.IndexByte(s, '.') >= 0 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	} else if alt && strings.IndexByte(s, '.') < 0 {
		s += "."
	}
	if dotZero && tail == "" && strings.IndexByte(s, '.') < 0 {
		s += ".0"
	}
	return s + tail
}
