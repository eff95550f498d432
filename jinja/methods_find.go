package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// window applies the start and end arguments of find and its kin. It gives the
// part of s to look at and the number of characters before it.
func (e *evaluator) window(s string, start, end any) (part string, before int, ok bool) {
	if start == absent && end == absent {
		return s, 0, true
	}
	e.steps(len(s) / bytesPerStep)
	n := runeLen(s)
	read := func(v any, def int) int {
		if v == absent || v == nil {
			return def
		}
		i := toIndex(v, "slice indices")
		if i < 0 {
			i = max(i+n, 0)
		}
		return i
	}
	from, to := read(start, 0), min(read(end, n), n)
	if from > to || from > n {
		return "", 0, false
	}
	if n == len(s) {
		return s[from:to], from, true
	}
	runes := []rune(s)
	e.text(4 * len(runes))
	return string(runes[from:to]), from, true
}

func (e *evaluator) find(s string, a []any, last bool) int {
	sub := needStr(a[0], "the text to find")
	part, before, ok := e.window(s, a[1], a[2])
	if !ok {
		return -1
	}
	e.steps(len(part) / bytesPerStep)
	at := strings.Index(part, sub)
	if last {
		at = strings.LastIndex(part, sub)
	}
	if at < 0 {
		return -1
	}
	return before + runeLen(part[:at])
}

func found(at int) any {
	if at < 0 {
		fail(KindValue, "substring not found")
	}
	return at
}

func strCount(e *evaluator, s string, a []any) any {
	sub := needStr(a[0], "the text to count")
	part, _, ok := e.window(s, a[1], a[2])
	if !ok {
		return 0
	}
	return strings.Count(part, sub)
}

func (e *evaluator) affix(s string, a []any, name string, has func(s, affix string) bool) any {
	part, _, ok := e.window(s, a[1], a[2])
	options := []any{a[0]}
	if t, isTuple := a[0].(tuple); isTuple {
		options = t
	}
	for _, o := range options {
		affix, isStr := o.(string)
		if !isStr {
			fail(KindType, "%s first arg must be str or a tuple of str, not %s", name, typeName(norm(o)))
		}
		e.step()
		if ok && has(part, affix) {
			return true
		}
	}
	return false
}

func strEncode(e *evaluator, s string, a []any) any {
	encoding := "utf-8"
	if a[0] != absent {
		encoding = strings.ToLower(needStr(a[0], "encode() argument 'encoding'"))
	}
	switch strings.ReplaceAll(encoding, "_", "-") {
	case "utf-8", "utf8":
		return textBytes(s)
	case "ascii", "us-ascii":
		if isASCII(s) {
			return textBytes(s)
		}
		fail(KindValue, "'ascii' codec can't encode characters: ordinal not in range(128)")
	}
	fail(KindLookup, "the encoding %s is not available, only utf-8 and ascii are", reprString(encoding))
	return nil
}

func strMakeTrans(e *evaluator, _ string, a []any) any {
	d := newDict(0)
	if a[1] == absent {
		m, ok := asMapping(a[0])
		if !ok {
			fail(KindType, "if you give only one argument to maketrans it must be a dict")
		}
		keys, values := m.pairs()
		for i, k := range keys {
			e.items(4)
			if s, isStr := k.(string); isStr {
				if runeLen(s) != 1 {
					fail(KindValue, "string keys in translate table must be of length 1")
				}
				r, _ := utf8.DecodeRuneInString(s)
				k = int(r)
			}
			d.set(e, k, values[i])
		}
		return d
	}
	from, to := []rune(needStr(a[0], "maketrans() argument 1")), []rune(needStr(a[1], "maketrans() argument 2"))
	if len(from) != len(to) {
		fail(KindValue, "the first two maketrans arguments must have equal length")
	}
	e.items(4 * len(from))
	for i, r := range from {
		d.set(e, int(r), int(to[i]))
	}
	if a[2] != absent {
		for _, r := range needStr(a[2], "maketrans() argument 3") {
			e.items(4)
			d.set(e, int(r), nil)
		}
	}
	return d
}

func strTranslate(e *evaluator, s string, a []any) any {
	m, ok := asMapping(a[0])
	if !ok {
		fail(KindType, "'%s' object is not subscriptable", typeName(norm(a[0])))
	}
	var b strings.Builder
	for _, r := range s {
		e.step()
		to, ok := m.get(e, int(r))
		if !ok {
			b.WriteRune(r)
			continue
		}
		switch to := to.(type) {
		case nil:
		case string:
			b.WriteString(to)
		case int:
			if to < 0 || to > unicode.MaxRune {
				fail(KindValue, "character mapping must be in range(0x110000)")
			}
			b.WriteRune(rune(to))
		default:
			fail(KindType, "character mapping must return integer, None or str")
		}
		e.checkSize(b.Len())
	}
	e.text(b.Len())
	return b.String()
}
