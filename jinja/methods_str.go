package jinja

import (
	"strings"
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
	e.scan(len(s))
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
