package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// str is Python's str().
func (e *evaluator) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return strconv.Itoa(v)
	case float64:
		return formatFloat(v)
	case *undefined:
		return ""
	}
	return e.repr(v)
}

// repr is Python's repr().
func (e *evaluator) repr(v any) string {
	var b strings.Builder
	e.writeRepr(&b, v, 0)
	e.text(b.Len())
	return b.String()
}

func (e *evaluator) writeRepr(b *strings.Builder, v any, depth int) {
	e.checkDepth(depth)
	if b.Len() > e.bytesLeft {
		e.alloc(b.Len())
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(boolName(v))
	case int:
		b.WriteString(strconv.Itoa(v))
	case *big.Int:
		b.WriteString(e.formatBig(v))
	case float64:
		b.WriteString(formatFloat(v))
	case string:
		e.steps(len(v) / bytesPerStep)
		writeReprString(b, v, false)
	case textBytes:
		b.WriteByte('b')
		writeReprString(b, string(v), true)
	case *undefined:
		b.WriteString("Undefined")
	case []any:
		e.writeReprItems(b, "[", "]", v, depth)
	case tuple:
		e.writeReprTuple(b, v, depth)
	case *group:
		items, _ := sequence(v)
		e.writeReprTuple(b, items, depth)
	case *dict, map[string]any:
		m, _ := asMapping(v)
		e.writeReprDict(b, m, depth)
	case *mapView:
		b.WriteString("dict_" + v.kind + "(")
		e.writeReprItems(b, "[", "]", e.collect(v), depth)
		b.WriteByte(')')
	case rangeValue:
		fmt.Fprintf(b, "range(%d, %d", v.start, v.stop)
		if v.step != 1 {
			fmt.Fprintf(b, ", %d", v.step)
		}
		b.WriteByte(')')
	default:
		e.writeReprObject(b, v, depth)
	}
}

// writeReprObject writes what is no plain data.
func (e *evaluator) writeReprObject(b *strings.Builder, v any, depth int) {
	switch v := v.(type) {
	case *namespace:
		b.WriteString("<Namespace ")
		e.writeReprDict(b, v.vars, depth)
		b.WriteByte('>')
	case *loopState:
		fmt.Fprintf(b, "<LoopContext %d/%d>", v.index0+1, v.length())
	case *macro:
		if v.def.name == "" {
			b.WriteString("<Macro anonymous>")
		} else {
			b.WriteString("<Macro " + reprString(v.def.name) + ">")
		}
	case *method:
		fmt.Fprintf(b, "<built-in method %s of %s object>", v.name, typeName(v.recv))
	case *builtin:
		b.WriteString("<function " + v.name + ">")
	default:
		if n := norm(v); typeName(n) != typeName(v) || classOf(n) != notNumber {
			e.writeRepr(b, n, depth+1)
			return
		}
		b.WriteString("<" + typeName(v) + " object>")
	}
}

func (e *evaluator) writeReprItems(b *strings.Builder, open, end string, items []any, depth int) {
	b.WriteString(open)
	for i, item := range items {
		if i > 0 {
			b.WriteString(", ")
		}
		e.writeRepr(b, norm(item), depth+1)
	}
	b.WriteString(end)
}

func (e *evaluator) writeReprTuple(b *strings.Builder, items []any, depth int) {
	end := ")"
	if len(items) == 1 {
		end = ",)"
	}
	e.writeReprItems(b, "(", end, items, depth)
}

func (e *evaluator) writeReprDict(b *strings.Builder, m mapping, depth int) {
	keys, values := m.pairs()
	b.WriteByte('{')
	for i := range keys {
		if i > 0 {
			b.WriteString(", ")
		}
		e.writeRepr(b, keys[i], depth+1)
		b.WriteString(": ")
		e.writeRepr(b, values[i], depth+1)
	}
	b.WriteByte('}')
}

func boolName(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

// reprString quotes a string as Python's repr does.
func reprString(s string) string {
	var b strings.Builder
	writeReprString(&b, s, false)
	return b.String()
}

// shortRepr is the repr of a scalar for messages, and "..." for what may be large.
func shortRepr(v any) string {
	switch v := v.(type) {
	case string:
		if utf8.RuneCountInString(v) > 60 {
			v = string([]rune(v)[:60]) + "..."
		}
		return reprString(v)
	case int:
		return strconv.Itoa(v)
	case float64:
		return formatFloat(v)
	case bool:
		return boolName(v)
	case nil:
		return "None"
	}
	return "<" + typeName(v) + ">"
}

func writeReprString(b *strings.Builder, s string, ascii bool) {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b.Grow(len(s) + 2)
	b.WriteByte(quote)
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf || ascii {
			switch {
			case c == quote || c == '\\':
				b.WriteByte('\\')
				b.WriteByte(c)
			case c == '\n':
				b.WriteString(`\n`)
			case c == '\r':
				b.WriteString(`\r`)
			case c == '\t':
				b.WriteString(`\t`)
			case c < ' ' || c >= 0x7f:
				fmt.Fprintf(b, `\x%02x`, c)
			default:
				b.WriteByte(c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if unicode.IsPrint(r) {
			b.WriteString(s[i : i+size])
		} else {
			b.WriteString(asciiEscape(r))
		}
		i += size
	}
	b.WriteByte(quote)
}

// asciiEscape writes a character as \xNN, \uNNNN or \UNNNNNNNN.
func asciiEscape(r rune) string {
	switch {
	case r <= 0xff:
		return fmt.Sprintf(`\x%02x`, r)
	case r <= 0xffff:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// isASCII reports whether bytes and characters are the same thing in s.
func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// runeLen is Python's len() of a string.
func runeLen(s string) int {
	if isASCII(s) {
		return len(s)
	}
	return utf8.RuneCountInString(s)
}
