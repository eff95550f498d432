package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// cutMethods are the string methods that cut, join and find; those about
// letters and padding are in methods_case.go.
func cutMethods() []*methodDef {
	return []*methodDef{
		{name: "split", sig: named(0, "sep", "maxsplit"), str: strSplit},
		{name: "rsplit", sig: named(0, "sep", "maxsplit"), str: strRsplit},
		{name: "splitlines", sig: named(0, "keepends"), str: func(e *evaluator, s string, a []any) any {
			return e.stringList(e.splitLines(s, a[0] != absent && truth(a[0])))
		}},
		{name: "partition", sig: takes(1, "sep"), str: strPartition},
		{name: "rpartition", sig: takes(1, "sep"), str: strRpartition},
		{name: "strip", sig: takes(0, "chars"), str: func(e *evaluator, s string, a []any) any { return e.strip(s, a[0], true, true) }},
		{name: "lstrip", sig: takes(0, "chars"), str: func(e *evaluator, s string, a []any) any { return e.strip(s, a[0], true, false) }},
		{name: "rstrip", sig: takes(0, "chars"), str: func(e *evaluator, s string, a []any) any { return e.strip(s, a[0], false, true) }},
		{name: "removeprefix", sig: takes(1, "prefix"), str: func(e *evaluator, s string, a []any) any {
			return strings.TrimPrefix(s, needStr(a[0], "removeprefix() argument"))
		}},
		{name: "removesuffix", sig: takes(1, "suffix"), str: func(e *evaluator, s string, a []any) any {
			return strings.TrimSuffix(s, needStr(a[0], "removesuffix() argument"))
		}},
		{name: "replace", sig: takes(2, "old", "new", "count"), str: strReplace},
		{name: "join", sig: takes(1, "iterable"), str: strJoin},
		{name: "find", sig: takes(1, "sub", "start", "end"), str: func(e *evaluator, s string, a []any) any { return e.find(s, a, false) }},
		{name: "rfind", sig: takes(1, "sub", "start", "end"), str: func(e *evaluator, s string, a []any) any { return e.find(s, a, true) }},
		{name: "index", sig: takes(1, "sub", "start", "end"), str: func(e *evaluator, s string, a []any) any { return found(e.find(s, a, false)) }},
		{name: "rindex", sig: takes(1, "sub", "start", "end"), str: func(e *evaluator, s string, a []any) any { return found(e.find(s, a, true)) }},
		{name: "count", sig: takes(1, "sub", "start", "end"), str: strCount},
		{name: "startswith", sig: takes(1, "prefix", "start", "end"), str: func(e *evaluator, s string, a []any) any {
			return e.affix(s, a, "startswith", strings.HasPrefix)
		}},
		{name: "endswith", sig: takes(1, "suffix", "start", "end"), str: func(e *evaluator, s string, a []any) any {
			return e.affix(s, a, "endswith", strings.HasSuffix)
		}},
		{name: "encode", sig: named(0, "encoding", "errors"), str: strEncode},
		{name: "format", variadic: true, call: func(e *evaluator, recv any, a *args) any { return e.strFormat(recv.(string), a) }},
		{name: "format_map", sig: takes(1, "mapping"), str: strFormatMap},
		{name: "translate", sig: takes(1, "table"), str: strTranslate},
		{name: "maketrans", sig: takes(1, "x", "y", "z"), str: strMakeTrans},
	}
}

// needStr demands a string argument.
func needStr(v any, what string) string {
	s, ok := v.(string)
	if !ok {
		fail(KindType, "%s must be str, not %s", what, typeName(norm(v)))
	}
	return s
}

func (e *evaluator) stringList(parts []string) []any {
	e.items(len(parts))
	out := make([]any, len(parts))
	for i, s := range parts {
		out[i] = s
	}
	return out
}

func splitArgs(a []any) (sep string, bySpace bool, limit int) {
	limit = -1
	if a[1] != absent {
		limit = toIndex(a[1], "maxsplit")
	}
	if a[0] == absent || a[0] == nil {
		return "", true, limit
	}
	sep = needStr(a[0], "separator")
	if sep == "" {
		fail(KindValue, "empty separator")
	}
	return sep, false, limit
}

func strSplit(e *evaluator, s string, a []any) any {
	sep, bySpace, limit := splitArgs(a)
	if bySpace {
		return e.stringList(e.splitSpace(s, limit))
	}
	e.items(strings.Count(s, sep))
	if limit < 0 {
		return e.stringList(strings.Split(s, sep))
	}
	return e.stringList(strings.SplitN(s, sep, min(limit, len(s))+1))
}

// splitSpace cuts at runs of blanks, at most limit times, from the left.
func (e *evaluator) splitSpace(s string, limit int) []string {
	if limit < 0 {
		limit = len(s) + 1
	}
	var out []string
	s = strings.TrimLeftFunc(s, isPythonSpace)
	for s != "" && len(out) < limit {
		e.items(1)
		end := strings.IndexFunc(s, isPythonSpace)
		if end < 0 {
			break
		}
		out = append(out, s[:end])
		s = strings.TrimLeftFunc(s[end:], isPythonSpace)
	}
	if s == "" {
		return out
	}
	e.items(1)
	if len(out) < limit { // the limit did not end the split: no blanks are left but trailing ones
		s = strings.TrimRightFunc(s, isPythonSpace)
	}
	return append(out, s)
}

func strRsplit(e *evaluator, s string, a []any) any {
	sep, bySpace, limit := splitArgs(a)
	if limit < 0 {
		return strSplit(e, s, a)
	}
	var parts []string
	if bySpace {
		s = strings.TrimRightFunc(s, isPythonSpace)
	}
	for len(parts) < limit {
		e.items(1)
		var at, next int
		if bySpace {
			at = strings.LastIndexFunc(s, isPythonSpace)
			_, size := utf8.DecodeRuneInString(s[max(at, 0):])
			next = at + size
		} else {
			at = strings.LastIndex(s, sep)
			next = at + len(sep)
		}
		if at < 0 {
			break
		}
		parts = append(parts, s[next:])
		s = s[:at]
		if bySpace {
			s = strings.TrimRightFunc(s, isPythonSpace)
		}
	}
	if bySpace && len(parts) < limit {
		s = strings.TrimLeftFunc(s, isPythonSpace)
	}
	if !bySpace || s != "" {
		parts = append(parts, s)
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return e.stringList(parts)
}

// isLineEnd tells the characters str.splitlines cuts at.
func isLineEnd(r rune) bool {
	switch r {
	case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

func (e *evaluator) splitLines(s string, keep bool) []string {
	var out []string
	for s != "" {
		e.items(1)
		at := strings.IndexFunc(s, isLineEnd)
		if at < 0 {
			return append(out, s)
		}
		_, size := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			size = 2
		}
		if keep {
			out = append(out, s[:at+size])
		} else {
			out = append(out, s[:at])
		}
		s = s[at+size:]
	}
	return out
}

func strPartition(e *evaluator, s string, a []any) any {
	sep := needStr(a[0], "separator")
	if sep == "" {
		fail(KindValue, "empty separator")
	}
	if before, after, ok := strings.Cut(s, sep); ok {
		return tuple{before, sep, after}
	}
	return tuple{s, "", ""}
}

func strRpartition(e *evaluator, s string, a []any) any {
	sep := needStr(a[0], "separator")
	if sep == "" {
		fail(KindValue, "empty separator")
	}
	if at := strings.LastIndex(s, sep); at >= 0 {
		return tuple{s[:at], sep, s[at+len(sep):]}
	}
	return tuple{"", "", s}
}

func (e *evaluator) strip(s string, chars any, left, right bool) string {
	out := isPythonSpace
	if chars != absent && chars != nil {
		text := needStr(chars, "strip arg")
		e.steps(len(text))
		set := make(map[rune]bool, min(len(text), 16))
		for _, r := range text {
			set[r] = true
		}
		out = func(r rune) bool { return set[r] }
	}
	if left {
		s = strings.TrimLeftFunc(s, out)
	}
	if right {
		s = strings.TrimRightFunc(s, out)
	}
	return s
}

func strReplace(e *evaluator, s string, a []any) any {
	count := -1
	if a[2] != absent {
		count = toIndex(a[2], "replace() argument 3")
	}
	return e.replace(s, needStr(a[0], "replace() argument 1"), needStr(a[1], "replace() argument 2"), count)
}

func (e *evaluator) replace(s, old, new string, count int) string {
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return s
	}
	e.steps(n)
	e.text(len(s) + n*(len(new)-len(old)))
	return strings.Replace(s, old, new, n)
}

func strJoin(e *evaluator, s string, a []any) any {
	next := e.iterate(a[0])
	var parts []string
	size := 0
	for v, ok := next(); ok; v, ok = next() {
		part, isStr := v.(string)
		if !isStr {
			fail(KindType, "sequence item %d: expected str instance, %s found", len(parts), typeName(v))
		}
		e.alloc(anyBytes)
		parts = append(parts, part)
		size += len(part) + len(s)
		e.checkSize(size)
	}
	return e.joinStrings(parts, s, size)
}

// checkSize fails early on what could not be allocated later.
func (e *evaluator) checkSize(n int) {
	if n > e.bytesLeft {
		e.alloc(n)
	}
}

func (e *evaluator) joinStrings(parts []string, sep string, size int) string {
	e.text(size)
	return strings.Join(parts, sep)
}

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
