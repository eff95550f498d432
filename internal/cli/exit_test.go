package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestTheExitStatusSaysWhatKindOfErrorItWas(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      error
		want     int
		wantSaid string
	}{
		{"no error", nil, 0, ""},
		{"an error", errors.New("it broke"), 1, "tarn: it broke\n"},
		{"an error that tells what a pod has printed", errors.New("it broke: \x1b[2J\nall is well"), 1, "tarn: it broke: [2J\nall is well\n"},
		{"an error that was told already", fmt.Errorf("wrapped: %w", exitError{1}), 1, ""},
		{"a wrong command line", usageError{errors.New("what?"), "tarn app"}, 2, "tarn: what?; see tarn app --help\n"},
		{"a time that is over", timeoutError{errors.New("not yet")}, 3, "tarn: not yet\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said bytes.Buffer
			if got := ExitStatus(c.err, &said); got != c.want || said.String() != c.wantSaid {
				t.Errorf("got %d and %q, want %d and %q", got, said.String(), c.want, c.wantSaid)
			}
		})
	}
}

func TestAWrongCommandLineIsToldFromAFailure(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"statis", `tarn has no command "statis"; did you mean status?`},
		{"trash lst", `tarn trash has no command "lst"; did you mean list?`},
		{"pav nothing-like-it", `tarn pav has no command "nothing-like-it"`},
		{"status --no-such-flag", "unknown flag: --no-such-flag; see tarn status --help"},
		{"status here", "tarn status --help"},
		{"status --output xml", "table, json, yaml; see tarn status --help"},
		{"explain claim", "\"claim\" is not a kind and a name; write for example claim shop/data; see tarn explain --help"},
		{"explain node n1", `kind "node" is unknown`},
		{"pav render file", `required flag(s) "section" not set; see tarn pav render --help`},
		{"undelete claim shop/data", `tarn undelete has no command "claim"; did you mean volume?`},
		{"undelete volume shop/data", `"shop/data" is not the name of a volume; tarn trash list shows the volume of each deleted claim`},
		{"trash purge v shop/data", `"shop/data" is not the name of a volume; tarn trash list shows the volume of each deleted claim`},
		{"trash purge", "give the names of volumes, or --all; see tarn trash purge --help"},
	} {
		if out, said, status := run(t, "", strings.Fields(c.args)...); status != 2 || !strings.Contains(said, c.want) || out != "" {
			t.Errorf("tarn %s: exit status %d, want 2 and %q:\n%s%s", c.args, status, c.want, out, said)
		}
	}
}

func TestTheVersionIsPrintedByACommandAndByAFlag(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		if out, said, status := run(t, "", arg); status != 0 || out != versionLine()+"\n" || said != "" {
			t.Errorf("tarn %s: exit status %d\n%s%s", arg, status, out, said)
		}
	}
}

func TestACommandThatOnlyHasOthersPrintsItsHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"trash"}, {"undelete"}} {
		if out, said, status := run(t, "", args...); status != 0 || !strings.Contains(out, "Available Commands") && !strings.Contains(out, "Check the state:") || said != "" {
			t.Errorf("tarn %s: exit status %d\n%s%s", strings.Join(args, " "), status, out, said)
		}
	}
}

// Programs rely on the numbers, so the page and the help must list exactly these.
func TestTheExitStatusesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _, _ := run(t, "", "--help")
	for where, c := range map[string]struct {
		text string
		row  *regexp.Regexp
	}{
		"docs/reference/command-line.md": {string(page), regexp.MustCompile(`(?m)^\| ([0-9]+) \| \S`)},
		"tarn --help":                    {help, regexp.MustCompile(`(?m)^  ([0-9]+)  \S`)},
	} {
		var got []string
		for _, row := range c.row.FindAllStringSubmatch(c.text, -1) {
			got = append(got, row[1])
		}
		if want := fmt.Sprint([]int{0, exitFailed, exitUsage, exitTimeout}); fmt.Sprint(got) != want {
			t.Errorf("%s has the exit statuses %s, want %s", where, got, want)
		}
	}
}
