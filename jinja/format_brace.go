package jinja

import (
	"strconv"
	"strings"
)

// braceFormat is str.format: replacement fields in braces.
type braceFormat struct {
	e     *evaluator
	args  []any
	named mapping
	auto  int // the next automatic number; -1 once a field was numbered by hand
}

func (e *evaluator) strFormat(s string, a *args) any {
	d := newDict(len(a.names))
	for i, name := range a.names {
		d.set(e, name, a.values[i])
	}
	return (&braceFormat{e: e, args: a.pos, named: d}).expand(s, 2)
}

func strFormatMap(e *evaluator, s string, a []any) any {
	m, ok := asMapping(norm(a[0]))
	if !ok {
		mustDefined(a[0])
		fail(KindType, "format_map() argument must be a mapping, not %s", typeName(norm(a[0])))
	}
	return (&braceFormat{e: e, named: m}).expand(s, 2)
}

// expand replaces the fields of s; depth counts fields within specifications.
func (b *braceFormat) expand(s string, depth int) string {
	if depth < 0 {
		fail(KindValue, "Max string recursion exceeded")
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		at := strings.IndexAny(s[i:], "{}")
		if at < 0 {
			out.WriteString(s[i:])
			break
		}
		out.WriteString(s[i : i+at])
		i += at
		if i+1 < len(s) && s[i+1] == s[i] {
			out.WriteByte(s[i])
			i += 2
			continue
		}
		if s[i] == '}' {
			fail(KindValue, "Single '}' encountered in format string")
		}
		end := fieldEnd(s, i)
		text := b.field(s[i+1:end], depth)
		out.WriteString(text)
		b.e.checkSize(out.Len())
		i = end + 1
	}
	b.e.text(out.Len())
	return out.String()
}

// fieldEnd finds the brace that closes the field opened at s[open].
func fieldEnd(s string, open int) int {
	if open+1 >= len(s) {
		fail(KindValue, "Single '{' encountered in format string")
	}
	level := 1
	bracket := false
	for i := open + 1; i < len(s); i++ {
		switch s[i] {
		case '[':
			bracket = bracket || level == 1 && !strings.Contains(s[open:i], ":")
		case ']':
			bracket = false
		case '{':
			if !bracket {
				level++
			}
		case '}':
			if bracket {
				continue
			}
			if level--; level == 0 {
				return i
			}
		}
	}
	fail(KindValue, "expected '}' before end of string")
	return 0
}

// field expands name[!conversion][:specification].
func (b *braceFormat) field(s string, depth int) string {
	b.e.step()
	spec, conversion := "", ""
	end := len(s)
	bracket := false
	for i := range len(s) {
		c := s[i]
		if c == '[' {
			bracket = true
		} else if c == ']' {
			bracket = false
		}
		if !bracket && (c == ':' || c == '!') {
			end = i
			break
		}
		if c == '{' && !bracket {
			fail(KindValue, "unexpected '{' in field name")
		}
	}
	name := s[:end]
	rest := s[end:]
	if strings.HasPrefix(rest, "!") {
		if len(rest) < 2 {
			fail(KindValue, "end of string while looking for conversion specifier")
		}
		conversion = rest[1:2]
		rest = rest[2:]
		if rest != "" && rest[0] != ':' {
			fail(KindValue, "expected ':' after conversion specifier")
		}
	}
	if rest != "" {
		spec = rest[1:]
	}
	v := b.lookup(name)
	switch conversion {
	case "":
	case "s":
		v = b.e.str(v)
	case "r":
		v = b.e.repr(v)
	case "a":
		v = asciiOnly(b.e.repr(v))
	default:
		fail(KindValue, "Unknown conversion specifier %s", conversion)
	}
	return b.e.format(v, b.expand(spec, depth-1))
}

// lookup finds first.attr[index]...
func (b *braceFormat) lookup(name string) any {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	v := b.first(name[:end])
	rest := name[end:]
	for rest != "" {
		b.e.step()
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			if end == 0 {
				fail(KindValue, "Empty attribute in format string")
			}
			v = b.e.attr(v, rest[1:end+1])
			rest = rest[end+1:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			fail(KindValue, "Missing ']' in format string")
		}
		key := rest[1:end]
		if key == "" {
			fail(KindValue, "Empty attribute in format string")
		}
		if n, err := strconv.Atoi(key); err == nil && isDecimal(key[0]) {
			v = b.e.item(v, n)
		} else {
			v = b.e.item(v, key)
		}
		rest = rest[end+1:]
		if rest != "" && rest[0] != '.' && rest[0] != '[' {
			fail(KindValue, "Only '.' or '[' may follow ']' in format field specifier")
		}
	}
	return v
}

// first finds what the name before any dot or bracket stands for.
func (b *braceFormat) first(name string) any {
	n, err := strconv.Atoi(name)
	switch {
	case name == "":
		if b.auto < 0 {
			fail(KindValue, "cannot switch from manual field specification to automatic field numbering")
		}
		n = b.auto
		b.auto++
	case err == nil && isDecimal(name[0]):
		if b.auto > 0 {
			fail(KindValue, "cannot switch from manual field specification to automatic field numbering")
		}
		b.auto = -1
	default:
		v, ok := b.named.get(b.e, name)
		if !ok {
			fail(KindLookup, "the key %s does not exist", shortRepr(name))
		}
		return v
	}
	if n >= len(b.args) {
		fail(KindLookup, "Replacement index %d out of range for positional args tuple", n)
	}
	return b.args[n]
}
