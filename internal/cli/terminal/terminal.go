// Package terminal is what is written for eyes alone: colours, and a line of progress
// that is written over. Where nobody looks, in a file or a pipe, there is neither. What
// others have written reaches no terminal as a command to it. It knows no command line.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Terminal writes to whatever out is.
type Terminal struct {
	out io.Writer
	// live says that somebody looks, and that a line can be written over.
	live bool
	// colours says that this somebody wants colours.
	colours bool
	// width is in characters; 0 where it is not known.
	width int
}

// Of finds out what a command writes to. NO_COLOR, if it is set and not empty, and TERM=dumb
// switch colours off.
func Of(out io.Writer) Terminal {
	t := Terminal{out: out}
	file, isFile := out.(*os.File)
	if !isFile {
		return t
	}
	// Only a terminal has a size.
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return t
	}
	dumb := os.Getenv("TERM") == "dumb"
	t.live, t.width = !dumb, int(size.Col)
	t.colours = !dumb && os.Getenv("NO_COLOR") == ""
	return t
}

// Good paints a text as what is well, Bad as what is not, Hint as what may be done.
func (t Terminal) Good(text string) string { return t.paint("32", text) }

// Bad paints a text as what is not well.
func (t Terminal) Bad(text string) string { return t.paint("1;31", text) }

// Hint paints a text as what may be done.
func (t Terminal) Hint(text string) string { return t.paint("36", text) }

func (t Terminal) paint(code, text string) string {
	if !t.colours || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Progress shows a line in place of the last one, cut to the terminal's width; where
// nobody looks it writes nothing. Done takes it away.
func (t Terminal) Progress(line string) {
	if !t.live {
		return
	}
	line = strings.ReplaceAll(Plain(line), "\n", " ")
	if shown := []rune(line); t.width > 1 && len(shown) >= t.width {
		line = string(shown[:t.width-2]) + "…"
	}
	fmt.Fprint(t.out, "\r\x1b[K"+line)
}

// Done takes the line of progress away.
func (t Terminal) Done() {
	if t.live {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
}

// Plain leaves out of a text what a terminal would act on, but for the ends of lines and
// tabs: much of what is told comes from pods and Events, which anybody may have written.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

// Clean gives a writer that writes what is plain of each text.
func Clean(w io.Writer) io.Writer { return cleaner{w} }

type cleaner struct{ w io.Writer }

// Write implements io.Writer.
func (c cleaner) Write(text []byte) (int, error) {
	if _, err := io.WriteString(c.w, Plain(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
