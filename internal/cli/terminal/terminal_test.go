package terminal

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// console opens a pseudo-terminal: what is written to one file is read from the other.
func console(t *testing.T) (reads, writes *os.File) {
	t.Helper()
	reads, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this machine gives no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { _ = reads.Close() })
	if err := unix.IoctlSetPointerInt(int(reads.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("this machine does not unlock a pseudo terminal: %v", err)
	}
	number, err := unix.IoctlGetInt(int(reads.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skipf("this machine does not number a pseudo terminal: %v", err)
	}
	writes, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine opens no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { _ = writes.Close() })
	if err := unix.IoctlSetWinsize(int(writes.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 10}); err != nil {
		t.Fatal(err)
	}
	return reads, writes
}

func TestOnATerminalThereAreColoursUnlessTheyAreNotWanted(t *testing.T) {
	_, writes := console(t)
	for _, c := range []struct {
		noColor, term, want string
	}{
		{"", "xterm", "\x1b[32mwell\x1b[0m"},
		{"1", "xterm", "well"},
		{"", "dumb", "well"},
	} {
		t.Run("NO_COLOR="+c.noColor+",TERM="+c.term, func(t *testing.T) {
			t.Setenv("NO_COLOR", c.noColor)
			t.Setenv("TERM", c.term)
			if got := Of(writes).Good("well"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestProgressIsWrittenOverAndCutToTheTerminal(t *testing.T) {
	reads, writes := console(t)
	t.Setenv("TERM", "xterm")
	screen := Of(writes)
	screen.Progress("one")
	screen.Progress("0123456789\nx")
	screen.Done()
	want := "\r\x1b[Kone\r\x1b[K01234567…\r\x1b[K"
	got := make([]byte, len(want))
	if err := reads.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Logf("no deadline on this file: %v", err)
	}
	for n := 0; n < len(want); {
		more, err := reads.Read(got[n:])
		if err != nil {
			t.Fatalf("read %q, then %v", got[:n], err)
		}
		n += more
	}
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWhereNobodyLooksThereIsTextAlone(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	var buffer bytes.Buffer
	for _, screen := range []Terminal{Of(file), Of(&buffer)} {
		screen.Progress("under way")
		screen.Done()
		if got := screen.Good("a") + screen.Bad("b") + screen.Hint("c"); got != "abc" {
			t.Errorf("got %q", got)
		}
	}
	if info, err := file.Stat(); err != nil || info.Size() > 0 || buffer.Len() > 0 {
		t.Errorf("progress was written: %v, %v bytes, %q", err, info.Size(), buffer.String())
	}
}

func TestWhatOthersWroteIsNoCommandToATerminal(t *testing.T) {
	const written = "\x1b]0;title\x07\x1b[2Jgone\r\nsecond\tline \u009b31m\u202eright to left é\xff"
	const want = "]0;title[2Jgone\nsecond\tline 31mright to left é\ufffd"
	if got := Plain(written); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var out bytes.Buffer
	if n, err := Clean(&out).Write([]byte(written)); err != nil || n != len(written) || out.String() != want {
		t.Errorf("wrote %d bytes, %v: %q, want %q", n, err, out.String(), want)
	}
}
