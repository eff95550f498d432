package main

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const stream = `{"Action":"start","Package":"tarn.dev/tarn/internal/a"}
{"Action":"run","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup"}
{"Action":"run","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup/good"}
{"Action":"pass","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup/good","Elapsed":0.1}
{"Action":"run","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup/bad"}
{"Action":"output","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup/bad","Output":"    a_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup/bad","Elapsed":0.1}
{"Action":"fail","Package":"tarn.dev/tarn/internal/a","Test":"TestGroup","Elapsed":0.2}
{"Action":"run","Package":"tarn.dev/tarn/internal/a","Test":"TestRoot"}
{"Action":"output","Package":"tarn.dev/tarn/internal/a","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"tarn.dev/tarn/internal/a","Test":"TestRoot","Output":"    a_test.go:9: needs root\n"}
{"Action":"skip","Package":"tarn.dev/tarn/internal/a","Test":"TestRoot","Elapsed":0}
{"Action":"fail","Package":"tarn.dev/tarn/internal/a","Elapsed":0.3}
not an event
{"Action":"skip","Package":"tarn.dev/tarn/internal/empty","Elapsed":0}
{"ImportPath":"tarn.dev/tarn/internal/b","Action":"build-output","Output":"b.go:3: undefined: x\n"}
{"Action":"fail","Package":"tarn.dev/tarn/internal/b","Elapsed":0,"FailedBuild":"tarn.dev/tarn/internal/b"}
{"Action":"pass","Package":"tarn.dev/tarn/internal/c","Elapsed":1}
`

func readStream(t *testing.T, text string) (*suite, string) {
	t.Helper()
	var out strings.Builder
	s := newSuite("unit")
	if err := s.read(strings.NewReader(text), &out); err != nil {
		t.Fatal(err)
	}
	return s, out.String()
}

func TestLeavesAreCountedAndParentsAreNot(t *testing.T) {
	s, _ := readStream(t, stream)
	if s.Passed != 1 || s.Failed != 2 || s.Skipped != 1 || s.Packages != 3 {
		t.Errorf("got %d passed, %d failed, %d skipped in %d packages, want 1, 2, 1 in 3", s.Passed, s.Failed, s.Skipped, s.Packages)
	}
}

func TestAFailureIsShownWithItsOutput(t *testing.T) {
	_, out := readStream(t, stream)
	for _, want := range []string{"FAILED internal/a TestGroup/bad", "got 1, want 2", "b.go:3: undefined: x", "not an event"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

func TestTheReportEndsWithTheSums(t *testing.T) {
	s, _ := readStream(t, stream)
	var out strings.Builder
	if failed := report([]suite{*s, {Name: "e2e", Passed: 4}}, &out); failed != 2 {
		t.Errorf("report gives %d failed, want 2", failed)
	}
	for _, want := range []string{"skipped  unit: internal/a TestRoot: needs root", "failed   unit: internal/b (does not build)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "\n5 passed, 2 failed, 1 skipped\n") {
		t.Errorf("the report does not end with the sums:\n%s", out.String())
	}
}

func TestATestThatFailsAfterItsChildrenPassedIsCounted(t *testing.T) {
	s, _ := readStream(t, `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/b"}
{"Action":"pass","Package":"p","Test":"TestA/b"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`)
	if s.Passed != 1 || s.Failed != 1 {
		t.Errorf("got %d passed, %d failed, want 1 and 1", s.Passed, s.Failed)
	}
}

func TestAPackageThatDiesIsAFailureWithItsLastWords(t *testing.T) {
	s, out := readStream(t, `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p"}
`)
	if s.Failed != 1 || !strings.Contains(out, "test timed out") {
		t.Errorf("got %d failed and\n%s", s.Failed, out)
	}
}

func TestACommandThatFailsWithoutATestIsAFailure(t *testing.T) {
	s := newSuite("unit")
	s.finish(errors.New("exit status 2"))
	if s.Failed != 1 || !strings.Contains(s.Failures[0], "exit status 2") {
		t.Errorf("got %d failed: %q", s.Failed, s.Failures)
	}
}

func TestASuiteThatDidNotRunFailsTheReport(t *testing.T) {
	t.Chdir(t.TempDir())
	var out strings.Builder
	if err := run([]string{"report", "unit"}, &out); err == nil {
		t.Error("the report of a suite without a record succeeds")
	}
	if !strings.HasSuffix(out.String(), "0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("the report does not count it:\n%s", out.String())
	}
}

func TestARecordOfAnEarlierRunIsGoneWhenTheCommandCannotStart(t *testing.T) {
	t.Chdir(t.TempDir())
	var out strings.Builder
	if err := run([]string{"run", "unit", "--", "true"}, &out); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"run", "unit", "--", filepath.Join(t.TempDir(), "missing")}, &out); err == nil {
		t.Error("a command that is not there succeeds")
	}
	if err := run([]string{"report", "unit"}, &out); err == nil {
		t.Error("the earlier record is reported")
	}
}

func TestCommandsBesideEachOtherCountTogether(t *testing.T) {
	t.Chdir(t.TempDir())
	pass := func(name string) []string {
		return []string{"echo", `{"Action":"pass","Package":"p","Test":"` + name + `"}` + "\n" + `{"Action":"pass","Package":"p"}`}
	}
	var out strings.Builder
	if err := run(slices.Concat([]string{"run", "e2e", "--"}, pass("TestA"), []string{"--"}, pass("TestB")), &out); err != nil {
		t.Fatal(err)
	}
	if err := run(slices.Concat([]string{"run", "e2e", "--"}, pass("TestA"), []string{"--", "false"}), &out); err == nil {
		t.Error("a suite succeeds one of whose commands failed")
	}
	if err := run([]string{"report", "e2e"}, &out); err == nil || !strings.HasSuffix(out.String(), "1 passed, 1 failed, 0 skipped\n") {
		t.Errorf("the report, %v, is:\n%s", err, out.String())
	}
	for _, args := range [][]string{{"run", "e2e", "--"}, {"run", "e2e", "--", "--", "true"}, {"run", "e2e", "--", "true", "--"}} {
		if err := run(args, &out); err == nil || !strings.Contains(err.Error(), "use `testsum run") {
			t.Errorf("%q gives %v", args, err)
		}
	}
}
