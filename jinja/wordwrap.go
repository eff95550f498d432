package jinja

import (
	"strings"
	"unicode"
)

// filterWordWrap wraps each line of a text by itself, as Python's textwrap does
// without changing blanks inside the lines.
func filterWordWrap(e *evaluator, v any, a []any) any {
	s := textOf(v, "wordwrap")
	width := intArg(a[0], 79, "width")
	if width <= 0 {
		fail(KindValue, "invalid width %d (must be > 0)", width)
	}
	newline := "\n"
	if given(a[2]) {
		newline = needStr(a[2], "wrapstring")
	}
	w := &wrapper{e: e, width: width, breakLong: a[1] == absent || truth(a[1]), hyphens: a[3] == absent || truth(a[3])}
	lines := e.splitLines(s, false)
	out := make([]string, len(lines))
	size := 0
	for i, line := range lines {
		parts := w.wrap(line)
		e.checkSize(size + len(line) + len(parts)*len(newline))
		out[i] = strings.Join(parts, newline)
		size += len(out[i]) + len(newline)
		e.checkSize(size)
	}
	return e.joinStrings(out, newline, size)
}

type wrapper struct {
	e         *evaluator
	width     int
	breakLong bool
	hyphens   bool
}

// wrap fills lines with chunks. Blanks are dropped at the start of a line and
// as the last chunk of one.
func (w *wrapper) wrap(text string) []string {
	chunks := w.chunks([]rune(text))
	var lines []string
	for len(chunks) > 0 {
		if isBlank(chunks[0]) && len(lines) > 0 {
			chunks = chunks[1:]
		}
		var line []rune
		lastChunk, count := 0, 0
		add := func(chunk []rune) {
			lastChunk = len(line)
			line = append(line, chunk...)
			count++
		}
		for len(chunks) > 0 && len(line)+len(chunks[0]) <= w.width {
			add(chunks[0])
			chunks = chunks[1:]
		}
		if len(chunks) > 0 && len(chunks[0]) > w.width {
			switch {
			case w.breakLong:
				at := w.breakAt(chunks[0], w.width-len(line))
				add(chunks[0][:at])
				chunks[0] = chunks[0][at:]
			case count == 0:
				add(chunks[0])
				chunks = chunks[1:]
			}
		}
		w.e.steps(1 + count + len(line)/bytesPerStep)
		if count > 0 && isBlank(line[lastChunk:]) {
			line = line[:lastChunk]
			count--
		}
		if count > 0 {
			w.e.items(1)
			lines = append(lines, string(line))
		}
	}
	return lines
}

// breakAt finds where to cut a chunk that is longer than the room left: after
// the last hyphen that fits, if there is one.
func (w *wrapper) breakAt(chunk []rune, room int) int {
	if !w.hyphens {
		return room
	}
	for i := room - 1; i > 0; i-- {
		if chunk[i] != '-' {
			continue
		}
		for _, r := range chunk[:i] {
			if r != '-' {
				return i + 1
			}
		}
		break
	}
	return room
}

func isBlank(chunk []rune) bool {
	for _, r := range chunk {
		if !isPythonSpace(r) {
			return false
		}
	}
	return true
}

// isWrapSpace tells the blanks textwrap breaks at: only the ASCII ones.
func isWrapSpace(r rune) bool { return r == ' ' || r >= 9 && r <= 13 }

// chunks cuts a text into words, blanks, and the parts of hyphenated words.
func (w *wrapper) chunks(text []rune) [][]rune {
	var out [][]rune
	for i := 0; i < len(text); {
		w.e.items(1)
		start := i
		if isWrapSpace(text[i]) {
			for i < len(text) && isWrapSpace(text[i]) {
				i++
			}
		} else {
			i = w.wordEnd(text, i)
		}
		out = append(out, text[start:i:i])
	}
	return out
}

// wordEnd finds the end of the word or part of a word that starts at i. A word
// may break after a hyphen between letters, and before and after a dash of
// several hyphens.
func (w *wrapper) wordEnd(text []rune, i int) int {
	letter := func(j int) bool {
		return j >= 0 && j < len(text) && (unicode.IsLetter(text[j]) || text[j] == '_')
	}
	if w.hyphens && text[i] == '-' && w.isDash(text, i) {
		for i < len(text) && text[i] == '-' {
			i++
		}
		return i
	}
	for start := i; i < len(text) && !isWrapSpace(text[i]); i++ {
		if !w.hyphens || text[i] != '-' || i == start {
			continue
		}
		if w.isDash(text, i) {
			return i
		}
		// a hyphen after two letters, or after a letter, a hyphen and a letter, and before the like
		before := letter(i-1) && (letter(i-2) || i > 2 && text[i-2] == '-' && letter(i-3))
		after := letter(i+1) && (letter(i+2) || i+2 < len(text) && text[i+2] == '-' && letter(i+3))
		if before && after {
			return i + 1
		}
	}
	return i
}

// isDash reports whether the hyphens at i are two or more, after a word and before one.
func (w *wrapper) isDash(text []rune, i int) bool {
	inWord := func(r rune) bool { return isWordRune(r) || strings.ContainsRune(`!"'&.,?`, r) }
	if i == 0 || !inWord(text[i-1]) {
		return false
	}
	n := i
	for n < len(text) && text[n] == '-' {
		n++
	}
	return n-i >= 2 && n < len(text) && isWordRune(text[n])
}
