package jinja

import (
	"html"
	"math/big"
	"strings"
	"unicode"
	"unicode/utf8"
)

// textFilters are the filters that give text.
func textFilters() []*filterDef {
	soft := func(name string, f func(string) string) *filterDef {
		return &filterDef{name: name, bound: func(e *evaluator, v any, _ []any) any {
			s := e.str(v)
			e.scan(len(s))
			e.text(len(s))
			return f(s)
		}}
	}
	return []*filterDef{
		soft("upper", upper), soft("lower", lower), soft("capitalize", capitalize), soft("title", filterTitle),
		soft("escape", escapeHTML), soft("forceescape", escapeHTML), soft("striptags", stripTags),
		soft("safe", func(s string) string { return s }), soft("string", func(s string) string { return s }),
		{name: "trim", sig: named(0, "chars"), bound: func(e *evaluator, v any, a []any) any { return e.strip(e.str(v), a[0], true, true) }},
		{name: "replace", sig: named(2, "old", "new", "count"), bound: filterReplace},
		{name: "format", variadic: true, call: filterFormat},
		{name: "center", sig: named(0, "width"), bound: func(e *evaluator, v any, a []any) any {
			return e.justify(e.str(v), []any{orElse(a[0], 80), absent}, "center")
		}},
		{name: "indent", sig: named(0, "width", "first", "blank"), bound: filterIndent},
		{name: "truncate", sig: named(0, "length", "killwords", "end", "leeway"), bound: filterTruncate},
		{name: "wordwrap", sig: named(0, "width", "break_long_words", "wrapstring", "break_on_hyphens"), bound: filterWordWrap},
		{name: "wordcount", bound: filterWordCount},
		{name: "urlencode", bound: filterURLEncode},
		{name: "xmlattr", sig: named(0, "autospace"), bound: filterXMLAttr},
		{name: "filesizeformat", sig: named(0, "binary"), bound: filterFileSize},
		{name: "pprint", bound: filterPPrint},
		{name: "tojson", sig: named(0, "indent"), bound: filterToJSON},
		{name: "tobash", bound: filterToBash},
	}
}

// filterTitle differs from str.title: words start after blanks, hyphens and opening brackets.
func filterTitle(s string) string {
	var b strings.Builder
	start := true
	for _, r := range s {
		switch {
		case isPythonSpace(r) || strings.ContainsRune("-({[<", r):
			b.WriteRune(r)
			start = true
		case start:
			b.WriteString(upper(string(r)))
			start = false
		default:
			b.WriteString(lower(string(r)))
		}
	}
	return b.String()
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

func escapeHTML(s string) string { return htmlEscapes.Replace(s) }

// stripTags drops comments and tags, joins what blanks separate, and decodes entities.
func stripTags(s string) string {
	s = dropBetween(s, "<!--", "-->")
	s = dropBetween(s, "<", ">")
	return html.UnescapeString(strings.Join(strings.FieldsFunc(s, isPythonSpace), " "))
}

func dropBetween(s, open, end string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, open)
		if i < 0 {
			break
		}
		j := strings.Index(s[i+len(open):], end)
		if j < 0 {
			break
		}
		b.WriteString(s[:i])
		s = s[i+len(open)+j+len(end):]
	}
	b.WriteString(s)
	return b.String()
}

func filterReplace(e *evaluator, v any, a []any) any {
	count := -1
	if given(a[2]) {
		count = toIndex(a[2], "replace")
	}
	return e.replace(e.str(v), e.str(a[0]), e.str(a[1]), count)
}

func filterFormat(e *evaluator, v any, a *args) any {
	if len(a.pos) > 0 && len(a.names) > 0 {
		fail(KindRuntime, "can't handle positional and keyword arguments at the same time")
	}
	if len(a.names) == 0 {
		return e.percent(e.str(v), tuple(a.pos))
	}
	d := newDict(len(a.names))
	for i, name := range a.names {
		d.set(e, name, a.values[i])
	}
	return e.percent(e.str(v), d)
}

// textOf demands a string where Python's filter would add to it or slice it.
func textOf(v any, filter string) string {
	s, ok := v.(string)
	if !ok {
		mustDefined(v)
		fail(KindType, "the filter %s takes a string, not %s", filter, typeName(norm(v)))
	}
	return s
}

func filterIndent(e *evaluator, v any, a []any) any {
	s := textOf(v, "indent")
	by, ok := a[0].(string)
	if !ok {
		by = e.repeatString(" ", min(max(intArg(a[0], 4, "indent"), 0), maxRepeat))
	}
	lines := e.splitLines(s+"\n", false)
	e.checkSize(len(s) + len(lines)*(len(by)+1))
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if (i > 0 || flag(a[1])) && (line != "" || flag(a[2]) || i == 0) {
			b.WriteString(by)
		}
		b.WriteString(line)
	}
	e.text(b.Len())
	return b.String()
}

func filterTruncate(e *evaluator, v any, a []any) any {
	length := intArg(a[0], 255, "length")
	end := textOf(orElse(a[2], "..."), "truncate")
	leeway := 5
	if given(a[3]) {
		leeway = toIndex(a[3], "leeway")
	}
	if length < runeLen(end) {
		fail(KindRuntime, "expected length >= %d, got %d", runeLen(end), length)
	}
	if leeway < 0 {
		fail(KindRuntime, "expected leeway >= 0, got %d", leeway)
	}
	if e.length(v) <= length+leeway {
		return v
	}
	s := firstRunes(textOf(v, "truncate"), length-runeLen(end))
	e.text(len(s) + len(end))
	if !flag(a[1]) {
		if at := strings.LastIndexByte(s, ' '); at >= 0 {
			s = s[:at]
		}
	}
	return s + end
}

func isWordRune(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || isNumeric(r) || r >= utf8.RuneSelf && unicode.IsDigit(r)
}

func filterWordCount(e *evaluator, v any, _ []any) any {
	n, inWord := 0, false
	s := e.str(v)
	e.scan(len(s))
	for _, r := range s {
		word := isWordRune(r)
		if word && !inWord {
			n++
		}
		inWord = word
	}
	return n
}

// quoteURL percent-encodes text; in a query blanks become plus signs and slashes are quoted too.
func (e *evaluator) quoteURL(v any, query bool) string {
	s := e.str(v)
	if b, ok := v.(textBytes); ok {
		s = string(b)
	}
	e.text(3 * len(s))
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || isDecimal(c) || strings.IndexByte("_.-~", c) >= 0 || c == '/' && !query:
			b.WriteByte(c)
		case c == ' ' && query:
			b.WriteByte('+')
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

func filterURLEncode(e *evaluator, v any, _ []any) any {
	v = norm(v)
	if m, ok := asMapping(v); ok {
		v = &mapView{"items", m}
	}
	_, isString := v.(string)
	_, isBytes := v.(textBytes)
	if _, ok := e.iterable(v); isString || isBytes || !ok {
		return e.quoteURL(v, false)
	}
	next := e.iterate(v)
	var parts []string
	size := 0
	pair := target{multi: true, tuple: make([]target, 2)}
	for item, ok := next(); ok; item, ok = next() {
		kv := e.unpackValues(&pair, item)
		part := e.quoteURL(kv[0], true) + "=" + e.quoteURL(kv[1], true)
		size += len(part) + 1
		parts = append(parts, part)
	}
	return e.joinStrings(parts, "&", size)
}

func filterXMLAttr(e *evaluator, v any, a []any) any {
	m, ok := asMapping(norm(v))
	if !ok {
		mustDefined(v)
		fail(KindType, "xmlattr takes a mapping, not %s", typeName(norm(v)))
	}
	keys, values := m.pairs()
	var b strings.Builder
	for i, k := range keys {
		if _, missing := values[i].(*undefined); missing || values[i] == nil {
			continue
		}
		key := needStr(k, "the name of an attribute")
		if strings.ContainsAny(key, " \t\n\r\f\v/>=") {
			fail(KindValue, "Invalid character in attribute name: %s", reprString(key))
		}
		if b.Len() > 0 || a[0] == absent || truth(a[0]) {
			b.WriteByte(' ')
		}
		b.WriteString(escapeHTML(key) + `="` + escapeHTML(e.str(values[i])) + `"`)
		e.checkSize(b.Len())
	}
	e.text(b.Len())
	return b.String()
}

func filterFileSize(e *evaluator, v any, a []any) any {
	bytes := e.float(v)
	base, suffix := 1000.0, "B"
	first := "k"
	if flag(a[0]) {
		base, suffix, first = 1024.0, "iB", "K"
	}
	if bytes == 1 {
		return "1 Byte"
	}
	if bytes < base {
		return e.str(intOfFloat(bytes)) + " Bytes"
	}
	unit := base
	prefixes := []string{first, "M", "G", "T", "P", "E", "Z", "Y"}
	for i, prefix := range prefixes {
		unit *= base
		if bytes < unit || i == len(prefixes)-1 {
			return e.floatText(base*bytes/unit, 'f', 1, false) + " " + prefix + suffix
		}
	}
	return ""
}

// float is Python's float() of a string or a number.
func (e *evaluator) float(v any) float64 {
	v = norm(v)
	switch v := v.(type) {
	case string:
		f, ok := parseFloat(v)
		if !ok {
			fail(KindValue, "could not convert string to float: %s", shortRepr(v))
		}
		return f
	case int, bool, float64, *big.Int:
		return toFloat(v)
	}
	mustDefined(v)
	fail(KindType, "float() argument must be a string or a real number, not '%s'", typeName(v))
	return 0
}
