package jinja

import "strings"

// root lexes text up to the next tag and the tag's beginning; false ends the lexing.
func (l *lexer) root() bool {
	start := l.pos
	open := nextTag(l.src, start)
	if open < 0 {
		l.add(tokData, start, l.src[start:])
		l.pos = len(l.src)
		return true
	}
	kind := l.src[open+1]
	after := open + 2
	sign := byte(0)
	if after < len(l.src) && (l.src[after] == '-' || l.src[after] == '+') {
		sign = l.src[after]
		after++
	}
	l.data(start, l.src[start:open], sign, kind == '{')
	l.lineStarting = false
	if tag, ok := l.mended[open]; ok {
		l.tokens = append(l.tokens, tag.tokens...)
		l.pos = tag.end
		return true
	}
	l.pos = after
	switch kind {
	case '#':
		return l.comment(open)
	case '%':
		if end, ok := l.rawBegin(open); ok {
			return l.raw(open, end)
		}
		l.add(tokBlockBegin, open, "")
		l.tag = tokBlockEnd
	default:
		l.add(tokVariableBegin, open, "")
		l.tag = tokVariableEnd
	}
	if l.mended != nil {
		l.spans = append(l.spans, span{start: open})
	}
	l.brackets = l.brackets[:0]
	return true
}

func nextTag(src string, from int) int {
	for i := from; i+1 < len(src); i++ {
		j := strings.IndexByte(src[i:], '{')
		if j < 0 || i+j+1 >= len(src) {
			return -1
		}
		i += j
		if c := src[i+1]; c == '{' || c == '%' || c == '#' {
			return i
		}
	}
	return -1
}

// data adds text before a tag, with the tag's whitespace control applied.
func (l *lexer) data(pos int, text string, sign byte, variable bool) {
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isPythonSpace)
	case sign != '+' && !variable:
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.lineStarting) && strings.TrimLeftFunc(text[line:], isPythonSpace) == "" {
			text = text[:line]
		}
	}
	if text != "" {
		l.add(tokData, pos, text)
	}
}

func (l *lexer) comment(open int) bool {
	end := strings.Index(l.src[l.pos:], "#}")
	if end < 0 {
		if l.pos == len(l.src) { // as in Jinja, an opening with nothing after it is forgiven
			return true
		}
		return l.fail(open, "Missing end of comment tag")
	}
	end += l.pos
	sign := byte(0)
	if end > l.pos {
		sign = l.src[end-1]
	}
	l.closeTag(end+2, sign, true)
	return true
}

// closeTag moves past a tag's end at pos, eating the whitespace its sign asks for.
func (l *lexer) closeTag(pos int, sign byte, trimNewline bool) {
	switch {
	case sign == '-':
		rest := strings.TrimLeftFunc(l.src[pos:], isPythonSpace)
		next := len(l.src) - len(rest)
		l.lineStarting = next > pos && l.src[next-1] == '\n'
		pos = next
	case sign != '+' && trimNewline && pos < len(l.src) && l.src[pos] == '\n':
		pos++
		l.lineStarting = true
	}
	l.pos = pos
}

// rawBegin reports where the text after {% raw %} starts, if that is what stands at open.
func (l *lexer) rawBegin(open int) (int, bool) {
	p := l.skipSpace(l.pos)
	if !strings.HasPrefix(l.src[p:], "raw") {
		return 0, false
	}
	p = l.skipSpace(p + 3)
	if strings.HasPrefix(l.src[p:], "-%}") {
		return l.skipSpace(p + 3), true
	}
	if strings.HasPrefix(l.src[p:], "%}") {
		return p + 2, true
	}
	return 0, false
}

func (l *lexer) skipSpace(p int) int {
	return len(l.src) - len(strings.TrimLeftFunc(l.src[p:], isPythonSpace))
}

func (l *lexer) raw(open, start int) bool {
	l.lineStarting = start > 0 && l.src[start-1] == '\n'
	for at := start; ; {
		i := strings.Index(l.src[at:], "{%")
		if i < 0 {
			if start == len(l.src) {
				l.pos = start
				return true
			}
			return l.fail(open, "Missing end of raw directive")
		}
		tag := at + i
		at = tag + 2
		p := at
		sign := byte(0)
		if p < len(l.src) && (l.src[p] == '-' || l.src[p] == '+') {
			sign = l.src[p]
			p++
		}
		p = l.skipSpace(p)
		if !strings.HasPrefix(l.src[p:], "endraw") {
			continue
		}
		p = l.skipSpace(p + 6)
		endSign := byte(0)
		if p < len(l.src) && (l.src[p] == '-' || l.src[p] == '+') {
			endSign = l.src[p]
			p++
		}
		if !strings.HasPrefix(l.src[p:], "%}") {
			continue
		}
		l.data(start, l.src[start:tag], sign, false)
		l.lineStarting = false
		l.closeTag(p+2, endSign, true)
		return true
	}
}
