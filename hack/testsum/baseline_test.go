package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorded makes the records of suites and a baseline of 100 runs and 100 tests for unit and e2e.
func recorded(t *testing.T, suites ...suite) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, dir := range []string{recordDir, filepath.Dir(baselineFile)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range suites {
		if err := s.save(filepath.Join(recordDir, s.Name+".json")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(baselineFile, []byte("# a comment\nunit 100 100\ne2e 0 100\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWhatCostsATenthMoreThanTheBaselineFails(t *testing.T) {
	e2e := suite{Name: "e2e", Passed: 100, Processor: 9999, Load: 1}
	for _, c := range []struct {
		name string
		unit suite
		want string // "" where the report succeeds
	}{
		{"as much", suite{Passed: 100, Processor: 200, Load: 2}, ""},
		{"a little more", suite{Passed: 119, Processor: 218, Load: 2}, ""},
		{"more on a machine that is as much slower", suite{Passed: 100, Processor: 400, Load: 4}, ""},
		{"a tenth more", suite{Passed: 100, Processor: 222, Load: 2}, "11% more processor time"},
		{"a tenth more, some of it kept by Go", suite{Passed: 100, Processor: 222, Load: 2, Cached: 1}, ""},
		{"more, and nobody could count it", suite{Passed: 100, Load: 2}, ""},
		{"many more tests", suite{Passed: 121, Processor: 200, Load: 2}, "there are 221 tests"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.unit.Name = "unit"
			recorded(t, c.unit, e2e)
			var out strings.Builder
			err := run([]string{"report", "unit", "e2e"}, &out)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q:\n%s", err, c.want, out.String())
			}
		})
	}
}

func TestTheBaselineIsWrittenFromWholeRunsAlone(t *testing.T) {
	unit := suite{Name: "unit", Passed: 3, Failed: 1, Processor: 30, Load: 0.5}
	recorded(t, unit, suite{Name: "e2e", Passed: 7, Processor: 1, Load: 1})
	if err := run([]string{"baseline", "unit", "e2e"}, nil); err == nil || !strings.Contains(err.Error(), "suite unit: 1 tests failed") {
		t.Errorf("of a suite that failed: %v", err)
	}
	unit.Failed = 0
	if err := unit.save(filepath.Join(recordDir, "unit.json")); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"baseline", "unit", "e2e"}, nil); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(baselineFile); err != nil || !strings.HasSuffix(string(text), "\nunit 60 3\ne2e 0 7\n") {
		t.Errorf("the baseline is %q, %v", text, err)
	}
}

func TestADaemonThatWasKilledCountsToo(t *testing.T) {
	t.Chdir(t.TempDir())
	var out strings.Builder
	// The loop leaves its parent, and is killed.
	loop := `setsid sh -c 'while :; do :; done' & sleep 0.7; kill -KILL $!`
	if err := run([]string{"run", "unit", "--", "bash", "-c", loop}, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "is not counted") {
		t.Skip(out.String())
	}
	s, err := load(filepath.Join(recordDir, "unit.json"))
	if err != nil || s.Processor < 0.05 || s.Load <= 0 {
		t.Errorf("the record says %v s of processor time beside a load of %v s, %v", s.Processor, s.Load, err)
	}
}
