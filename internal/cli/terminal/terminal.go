// Package terminal writes what is only for a person at a terminal: colours, and a progress line
// that is overwritten. It writes neither to a file or a pipe. It strips text of terminal control
// characters. It knows no command line.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Terminal writes to an output that may or may not be a terminal.
type Terminal struct {
	out io.Writer
	// live says that out is a terminal on which a line can be overwritten.
	live bool
	// colours says that colours are wanted.
	colours bool
	// width is in characters; 0 if it is not known.
	width int
}

// Of finds out what kind of output a command has. Colours are off if NO_COLOR is set and not empty,
// or if TERM is dumb.
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

// Good colours a text as a good state.
func (t Terminal) Good(text string) string { return t.paint("32", text) }

// Bad colours a text as a bad state.
func (t Terminal) Bad(text string) string { return t.paint("1;31", text) }

// Hint colours a text as a suggestion.
func (t Terminal) Hint(text string) string { return t.paint("36", text) }

func (t Terminal) paint(code, text string) string {
	if !t.colours || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Progress shows a line in place of the last one, cut to the terminal's width. If out is no
// terminal, it writes nothing. Done removes the line.
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

// Done removes the progress line.
func (t Terminal) Done() {
	if t.live {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
}

// Plain strips a text of control characters, except line ends and tabs. Much of the text comes from
// pods and Events, so any user of the cluster may have written it.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

// Clean returns a writer that writes the Plain form of each text.
func Clean(w io.Writer) io.Writer { return cleaner{w} }

type cleaner struct{ w io.Writer }

// Write implements io.Writer.
func (c cleaner) Write(text []byte) (int, error) {
	if _, err := io.WriteString(c.w, Plain(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
