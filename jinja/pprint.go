package jinja

import "strings"

// pprintWidth is the line width of Python's pprint.
const pprintWidth = 80

// filterPPrint is pprint.pformat: the repr, with the keys of mappings sorted,
// over several lines when it is long. Long strings are not cut.
func filterPPrint(e *evaluator, v any, _ []any) any {
	w := &prettyWriter{e: e}
	w.value(norm(v), 0, 0, 0)
	e.text(w.b.Len())
	return w.b.String()
}

type prettyWriter struct {
	e *evaluator
	b strings.Builder
}

// value writes v at a column, with room kept for what follows on the line.
func (w *prettyWriter) value(v any, column, after, depth int) {
	w.e.checkDepth(depth)
	flat := w.e.repr(w.sorted(v, depth))
	if runeLen(flat) <= pprintWidth-column-after {
		w.b.WriteString(flat)
		return
	}
	if m, ok := asMapping(v); ok && m.size() > 0 {
		w.dict(m, column, after, depth)
		return
	}
	items, ok := sequence(v)
	if !ok || len(items) == 0 {
		w.b.WriteString(flat)
		return
	}
	open, end := "[", "]"
	if typeName(v) == "tuple" {
		open, end = "(", ")"
		if len(items) == 1 {
			end = ",)"
		}
	}
	w.b.WriteString(open)
	for i, item := range items {
		rest := 1
		if i > 0 {
			w.newline(column + 1)
		}
		if i == len(items)-1 {
			rest = after + len(end)
		}
		w.value(norm(item), column+1, rest, depth+1)
		if i < len(items)-1 {
			w.b.WriteByte(',')
		}
	}
	w.b.WriteString(end)
}

func (w *prettyWriter) newline(column int) {
	w.e.pad(column, 1)
	w.b.WriteString("\n" + strings.Repeat(" ", column))
}

func (w *prettyWriter) dict(m mapping, column, after, depth int) {
	keys, values := w.pairs(m)
	w.b.WriteByte('{')
	for i, k := range keys {
		rest := 1
		if i > 0 {
			w.newline(column + 1)
		}
		if i == len(keys)-1 {
			rest = after + 1
		}
		key := w.e.repr(k)
		w.b.WriteString(key + ": ")
		w.value(values[i], column+1+runeLen(key)+2, rest, depth+1)
		if i < len(keys)-1 {
			w.b.WriteByte(',')
		}
	}
	w.b.WriteByte('}')
}

// pairs returns the entries by key, where the keys can be sorted.
func (w *prettyWriter) pairs(m mapping) (keys, values []any) {
	keys, values = m.pairs()
	for _, k := range keys {
		if _, ok := k.(string); !ok {
			return keys, values
		}
	}
	index := make([]any, len(keys))
	for i := range index {
		index[i] = i
	}
	w.e.items(2 * len(keys))
	k, v := make([]any, len(keys)), make([]any, len(keys))
	for i, at := range w.e.sortBy(index, keys, false) {
		k[i], v[i] = keys[at.(int)], values[at.(int)]
	}
	return k, v
}

// sorted copies a value with the mappings in it sorted.
func (w *prettyWriter) sorted(v any, depth int) any {
	w.e.checkDepth(depth)
	if m, ok := asMapping(v); ok {
		keys, values := w.pairs(m)
		d := newDict(len(keys))
		for i, k := range keys {
			d.set(w.e, k, w.sorted(values[i], depth+1))
		}
		return d
	}
	items, ok := sequence(v)
	if !ok {
		return v
	}
	w.e.items(len(items))
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = w.sorted(norm(item), depth+1)
	}
	if typeName(v) == "tuple" {
		return tuple(out)
	}
	return out
}
