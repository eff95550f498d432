package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// suite is the record of one suite. Tests are counted by their leaves: a test with subtests counts
// only if it fails by itself.
type suite struct {
	Name     string
	Passed   int
	Failed   int
	Skipped  int
	Packages int
	Seconds  float64
	// Processor is the processor time in seconds, of the tests and of what they started. Load is that
	// of the calibration load meanwhile. Cached is the number of packages whose result Go had kept.
	Processor, Load float64
	Cached          int
	// Wide: with WIDE=1 more ran than the baseline is about.
	Wide     bool
	Failures []string
	Skips    []string

	began   time.Time
	outputs map[string][]string
	parents map[string]bool
	broken  map[string]bool
}

func newSuite(name string) *suite {
	return &suite{Name: name, began: time.Now(), outputs: map[string][]string{}, parents: map[string]bool{}, broken: map[string]bool{}}
}

// read reads events to their end, and prints packages and failures as they come. It passes other
// lines through.
func (s *suite) read(events io.Reader, out io.Writer) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(out, line)
			} else {
				s.take(e, out)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take adds one event.
func (s *suite) take(e event, out io.Writer) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "output":
		if e.Test == "" && strings.HasPrefix(e.Output, "ok ") && strings.HasSuffix(e.Output, "\t(cached)\n") {
			s.Cached++
		}
		s.outputs[key] = append(s.outputs[key], e.Output)
	case "build-output":
		fmt.Fprint(out, e.Output)
	case "run":
		if cut := strings.LastIndex(e.Test, "/"); cut >= 0 {
			s.parents[e.Package+"\x00"+e.Test[:cut]] = true
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e, out)
		} else {
			s.endTest(e, out)
		}
		delete(s.outputs, key)
	}
}

func (s *suite) endTest(e event, out io.Writer) {
	key := e.Package + "\x00" + e.Test
	where := short(e.Package) + " " + e.Test
	text := strings.Join(s.outputs[key], "")
	switch {
	case e.Action == "fail":
		// A parent fails with its children. That is no news, unless no child failed.
		if s.parents[key] && s.broken[key] {
			s.breakParents(e)
			return
		}
		s.Failed++
		s.Failures = append(s.Failures, where)
		s.breakParents(e)
		fmt.Fprintf(out, "\nFAILED %s (%.1fs)\n%s\n", where, e.Elapsed, text)
	case e.Action == "skip":
		s.Skipped++
		s.Skips = append(s.Skips, where+": "+reason(text))
	case !s.parents[key]:
		s.Passed++
	}
}

// breakParents records for each parent test of e, and its package, that a test below failed.
func (s *suite) breakParents(e event) {
	s.broken[e.Package+"\x00"] = true
	for name := e.Test; ; {
		cut := strings.LastIndex(name, "/")
		if cut < 0 {
			return
		}
		name = name[:cut]
		s.broken[e.Package+"\x00"+name] = true
	}
}

func (s *suite) endPackage(e event, out io.Writer) {
	if e.Action == "skip" { // the package has no tests
		return
	}
	s.Packages++
	if e.Action == "fail" && !s.broken[e.Package+"\x00"] {
		what := short(e.Package) + " (package)"
		if e.FailedBuild != "" {
			what = short(e.Package) + " (does not build)"
		}
		s.Failed++
		s.Failures = append(s.Failures, what)
		fmt.Fprintf(out, "\nFAILED %s\n%s\n", what, s.packageText(e.Package))
	}
	fmt.Fprintf(out, "%-4s %-44s %7.1fs\n", e.Action, short(e.Package), e.Elapsed)
}

// packageText gives the output of a package and of its tests that never ended.
func (s *suite) packageText(name string) string {
	var text strings.Builder
	var keys []string
	for key := range s.outputs {
		if strings.HasPrefix(key, name+"\x00") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		text.WriteString(strings.Join(s.outputs[key], ""))
	}
	return text.String()
}

// finish closes the suite with the result of the command. A command that failed without a failed
// test is a failure of its own.
func (s *suite) finish(commandErr error) {
	if commandErr != nil && s.Failed == 0 {
		s.Failed = 1
		s.Failures = []string{"the command ended with " + commandErr.Error()}
	}
}

// add adds the counts of another suite. Both may contain the same packages.
func (s *suite) add(other *suite) {
	s.Passed, s.Failed, s.Skipped = s.Passed+other.Passed, s.Failed+other.Failed, s.Skipped+other.Skipped
	s.Packages, s.Cached = max(s.Packages, other.Packages), s.Cached+other.Cached
	s.Failures, s.Skips = append(s.Failures, other.Failures...), append(s.Skips, other.Skips...)
}

func (s *suite) save(name string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

func load(name string) (suite, error) {
	var s suite
	text, err := os.ReadFile(name)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// report prints the suites and the closing line. It returns the number of failed tests.
func report(suites []suite, out io.Writer) int {
	var passed, failed, skipped int
	fmt.Fprintf(out, "\n%-14s %8s %7s %7s %8s %9s %10s\n", "SUITE", "PASSED", "FAILED", "SKIPPED", "PACKAGES", "TIME", "PROCESSOR")
	for _, s := range suites {
		fmt.Fprintf(out, "%-14s %8d %7d %7d %8d %9s %10s\n", s.Name, s.Passed, s.Failed, s.Skipped, s.Packages, whole(s.Seconds), whole(s.Processor))
		passed, failed, skipped = passed+s.Passed, failed+s.Failed, skipped+s.Skipped
	}
	fmt.Fprintln(out)
	for _, s := range suites {
		for _, line := range s.Failures {
			fmt.Fprintf(out, "failed   %s: %s\n", s.Name, line)
		}
		for _, line := range s.Skips {
			fmt.Fprintf(out, "skipped  %s: %s\n", s.Name, line)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed
}

func whole(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second)
}

// short omits the module from a package's path.
func short(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, "tarn.dev/tarn"), "/")
}

// reason gives the line that a skipped test printed, without file and line number.
func reason(text string) string {
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, after, found := strings.Cut(line, ".go:"); found {
			if _, message, found := strings.Cut(after, ": "); found {
				return message
			}
		}
		return line
	}
	return "no reason given"
}
