package jinja

import (
	"fmt"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonWriter writes JSON the way Jinja's tojson does: sorted keys, a blank
// after each comma and colon, ASCII only, and the characters that mean
// something in HTML escaped.
type jsonWriter struct {
	e      *evaluator
	b      strings.Builder
	indent string
	pretty bool
}

func filterToJSON(e *evaluator, v any, a []any) any {
	w := &jsonWriter{e: e}
	if a[0] != absent && a[0] != nil {
		w.pretty = true
		if s, ok := a[0].(string); ok {
			w.indent = s
		} else {
			n := max(toIndex(a[0], "indent"), 0)
			e.pad(n, 1)
			w.indent = strings.Repeat(" ", n)
		}
	}
	w.value(v, 0)
	e.text(w.b.Len())
	return w.b.String()
}

func (w *jsonWriter) value(v any, depth int) {
	w.e.checkDepth(depth)
	w.e.checkSize(w.b.Len())
	switch v := norm(v).(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int:
		w.b.WriteString(strconv.Itoa(v))
	case *big.Int:
		w.b.WriteString(w.e.formatBig(v))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case string:
		w.str(v)
	case []any, tuple, *group:
		items, _ := sequence(v)
		w.list(items, depth)
	case *dict, map[string]any:
		m, _ := asMapping(v)
		w.dict(m, depth)
	default:
		fail(KindType, "Object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

// separate writes what stands before item i.
func (w *jsonWriter) separate(i, depth int) {
	if i > 0 {
		w.b.WriteByte(',')
	}
	if w.pretty {
		w.newline(depth)
	} else if i > 0 {
		w.b.WriteByte(' ')
	}
}

func (w *jsonWriter) newline(depth int) {
	w.e.steps(len(w.indent) * depth / bytesPerStep)
	w.e.checkSize(w.b.Len() + len(w.indent)*depth)
	w.b.WriteByte('\n')
	for range depth {
		w.b.WriteString(w.indent)
	}
}

func (w *jsonWriter) list(items []any, depth int) {
	w.b.WriteByte('[')
	for i, item := range items {
		w.separate(i, depth+1)
		w.value(item, depth+1)
	}
	if w.pretty && len(items) > 0 {
		w.newline(depth)
	}
	w.b.WriteByte(']')
}

func (w *jsonWriter) dict(m mapping, depth int) {
	keys, values := m.pairs()
	if _, sorted := m.(plainMap); !sorted && len(keys) > 1 {
		order := make([]any, len(keys))
		for i := range order {
			order[i] = i
		}
		order = w.e.sortBy(order, keys, false)
		k, v := make([]any, len(keys)), make([]any, len(keys))
		for i, at := range order {
			k[i], v[i] = keys[at.(int)], values[at.(int)]
		}
		keys, values = k, v
	}
	w.b.WriteByte('{')
	for i, k := range keys {
		w.separate(i, depth+1)
		w.key(k)
		w.b.WriteString(": ")
		w.value(values[i], depth+1)
	}
	if w.pretty && len(keys) > 0 {
		w.newline(depth)
	}
	w.b.WriteByte('}')
}

func (w *jsonWriter) key(k any) {
	switch k := k.(type) {
	case string:
		w.str(k)
	case nil, bool, int, float64, *big.Int:
		w.b.WriteByte('"')
		w.value(k, 0)
		w.b.WriteByte('"')
	default:
		fail(KindType, "keys must be str, int, float, bool or None, not %s", typeName(k))
	}
}

var jsonEscapes = [128]string{
	'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\f': `\f`, '\b': `\b`,
	'<': `\u003c`, '>': `\u003e`, '&': `\u0026`, '\'': `\u0027`,
}

func (w *jsonWriter) str(s string) {
	w.e.steps(len(s) / bytesPerStep)
	w.b.WriteByte('"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != 0x7f && jsonEscapes[c] == "" {
				i++
				continue
			}
			w.b.WriteString(s[start:i])
			if escape := jsonEscapes[c]; escape != "" {
				w.b.WriteString(escape)
			} else {
				fmt.Fprintf(&w.b, `\u%04x`, c)
			}
			i++
			start = i
			continue
		}
		w.b.WriteString(s[start:i])
		r, size := utf8.DecodeRuneInString(s[i:])
		if r > 0xffff {
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, high, low)
		} else {
			fmt.Fprintf(&w.b, `\u%04x`, r)
		}
		i += size
		start = i
	}
	w.b.WriteString(s[start:])
	w.b.WriteByte('"')
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
