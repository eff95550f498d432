package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// growth is how much of the baseline the suites may cost more.
const growth = 0.1

// cost is what a suite took: runs of the calibration load that take the same processor time, and the
// number of its tests. Runs is 0 for a suite whose processor time is not comparable.
type cost struct {
	Runs  float64
	Tests int
}

// baseline is the cost of each suite that is compared.
type baseline map[string]cost

// clusters are the suites whose clusters are started outside of them. Only their tests are counted.
var clusters = []string{"e2e", "addon", "rights"}

func costOf(s suite) cost {
	c := cost{Tests: s.Passed + s.Failed}
	if !slices.Contains(clusters, s.Name) && s.Load > 0 && s.Processor > 0 {
		c.Runs = s.Processor / s.Load
	}
	return c
}

// readBaseline reads the baseline. Without a file nothing is compared.
func readBaseline() (baseline, error) {
	text, err := os.ReadFile(baselineFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known := baseline{}
	for line := range strings.Lines(string(text)) {
		var name string
		var c cost
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%s %f %d", &name, &c.Runs, &c.Tests); err != nil {
			return nil, fmt.Errorf("%s: line %q is not a suite, a number of runs and a number of tests: %w; write the file with `make baseline`", baselineFile, strings.TrimSpace(line), err)
		}
		known[name] = c
	}
	return known, nil
}

// writeBaseline writes the costs of the last run. It needs all packages to have run.
func writeBaseline(names []string) error {
	text := "# Written by `make baseline`. Each line: a suite, its processor time in runs of the calibration load\n# (0: not compared, see docs/design/0013-what-make-test-runs.md), and the number of its tests.\n"
	for _, name := range names {
		s, err := load(filepath.Join(recordDir, name+".json"))
		if err != nil {
			return fmt.Errorf("suite %s has no record: run `make test` first: %w", name, err)
		}
		if s.Wide {
			return fmt.Errorf("suite %s ran every test there is; run `make test` first, without WIDE", name)
		}
		if s.Failed > 0 || s.Cached > 0 {
			return fmt.Errorf("suite %s: %d tests failed and %d packages were cached; run `go clean -testcache` and `make test` first", name, s.Failed, s.Cached)
		}
		c := costOf(s)
		text += fmt.Sprintf("%s %.0f %d\n", name, c.Runs, c.Tests)
	}
	return os.WriteFile(baselineFile, []byte(text), 0o644)
}

// compare says what the suites cost beside the baseline. It fails if the sum has grown too much.
func (known baseline) compare(suites []suite, out io.Writer) error {
	if known == nil {
		fmt.Fprintf(out, "the cost of the suites is not compared: there is no %s; `make baseline` writes it from this run\n", baselineFile)
		return nil
	}
	var now, before cost
	for _, s := range suites {
		was, found := known[s.Name]
		if !found || s.Wide {
			continue
		}
		is := costOf(s)
		now.Tests, before.Tests = now.Tests+is.Tests, before.Tests+was.Tests
		switch {
		case was.Runs == 0 || is.Runs == 0:
		case s.Cached > 0:
			fmt.Fprintf(out, "processor time of %s is not compared: Go had kept the results of %d packages\n", s.Name, s.Cached)
		default:
			fmt.Fprintf(out, "processor time of %s: %+.0f%% of the baseline\n", s.Name, 100*(is.Runs/was.Runs-1))
			now.Runs, before.Runs = now.Runs+is.Runs, before.Runs+was.Runs
		}
	}
	var errs []error
	if now.Runs > before.Runs*(1+growth) {
		errs = append(errs, fmt.Errorf("the suites take %.0f%% more processor time than %s says; make the new tests cheaper, or run `make baseline` and say in the commit why", 100*(now.Runs/before.Runs-1), baselineFile))
	}
	if float64(now.Tests) > float64(before.Tests)*(1+growth) {
		errs = append(errs, fmt.Errorf("there are %d tests, more than a tenth above the %d of %s; drop what another test shows, or run `make baseline`", now.Tests, before.Tests, baselineFile))
	}
	return errors.Join(errs...)
}
