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
		out[i] = strings.Join(w.wrap(line), newline)
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

func (w *wrapper) wrap(text string) []string {
	chunks := w.chunks([]rune(text))
	var lines []string
	for len(chunks) > 0 {
		if isBlank(chunks[0]) && len(lines) > 0 {
			chunks = chunks[1:]
		}
		var line []rune
		start := len(chunks)
		for len(chunks) > 0 && len(line)+len(chunks[0]) <= w.width {
			line = append(line, chunks[0]...)
			chunks = chunks[1:]
		}
		if len(chunks) > 0 && len(chunks[0]) > w.width {
			room := w.width - len(line)
			switch {
			case w.breakLong:
				room = w.breakAt(chunks[0], room)
				line = append(line, chunks[0][:room]...)
				chunks[0] = chunks[0][room:]
			case len(line) == 0:
				line = append(line, chunks[0]...)
				chunks = chunks[1:]
			}
		}
		w.e.steps(1 + len(line)/bytesPerStep + start - len(chunks))
		text := strings.TrimRightFunc(string(line), isPythonSpace)
		if text == string(line) || !endsBlank(line) {
			text = string(line)
		} else {
			text = dropLastBlank(line)
		}
		if len(text) > 0 {
			w.e.items(1)
			lines = append(lines, text)
		}
	}
	return lines
}

// breakAt finds where to cut a chunk that is longer than a line: after the last hyphen that fits, if there is one.
func (w *wrapper) breakAt(chunk []rune, room int) int {
	if room < 1 {
		return 1
	}
	if w.hyphens {
		for i := room - 1; i > 0; i-- {
			if chunk[i] == '-' {
				for _, r := range chunk[:i] {
					if r != '-' {
						return i + 1
					}
				}
				break
			}
		}
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

func endsBlank(line []rune) bool { return len(line) > 0 && isPythonSpace(line[len(line)-1]) }

// dropLastBlank takes the blanks off the end; the chunk they form is dropped as a whole.
func dropLastBlank(line []rune) string {
	n := len(line)
	for n > 0 && isPythonSpace(line[n-1]) {
		n--
	}
	return string(line[:n])
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
		// a hyphen after a letter and before two letters, or a letter and a hyphen and a letter
		before := letter(i-1) && (letter(i-2) || i-2 < start || text[i-2] == '-' && letter(i-3))
		after := letter(i+1) && (letter(i+2) || i+2 < len(text) && text[i+2] == '-' && letter(i+3))
		if before && after && (letter(i-2) || text[max(i-2, 0)] == '-') {
			return i + 1
		}
	}
	return i
}

// isDash tells whether the hyphens at i are two or more, after a word and before one.
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
