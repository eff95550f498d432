// Command testsum runs one suite of Go tests, shows what fails as it fails, and
// records what ran; at the end it sums the records up. It knows `go test -json`
// and nothing of what is tested.
//
//	testsum run NAME -- go test -json ./...    runs a suite, status 1 if it failed
//	testsum report NAME [NAME]...              sums up the suites named
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// recordDir is where records lie between run and report, below the folder make
// runs in.
const recordDir = ".tarn/tests"

const usage = "use `testsum run NAME -- COMMAND [ARGUMENT]...` or `testsum report NAME [NAME]...`"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) >= 4 && args[0] == "run" && args[2] == "--" {
		return runSuite(args[1], args[3:], out)
	}
	if len(args) >= 2 && args[0] == "report" {
		return reportSuites(args[1:], out)
	}
	return errors.New(usage)
}

// runSuite runs a command that prints the events of `go test -json`, and records
// them under the suite's name.
func runSuite(name string, command []string, out io.Writer) error {
	if err := os.MkdirAll(recordDir, 0o755); err != nil {
		return err
	}
	record := filepath.Join(recordDir, name+".json")
	if err := os.Remove(record); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tests := exec.Command(command[0], command[1:]...)
	tests.Stderr = os.Stderr
	events, err := tests.StdoutPipe()
	if err != nil {
		return err
	}
	if err := tests.Start(); err != nil {
		return fmt.Errorf("suite %s: %w", name, err)
	}
	s := newSuite(name)
	readErr := s.read(events, out)
	waitErr := tests.Wait()
	s.finish(waitErr)
	if err := s.save(record); err != nil {
		return err
	}
	if readErr != nil {
		return fmt.Errorf("suite %s: output of %s: %w", name, command[0], readErr)
	}
	if s.Failed > 0 {
		return fmt.Errorf("suite %s: %d failed", name, s.Failed)
	}
	return nil
}

// reportSuites prints a table of the suites and the closing line; a suite without
// a record did not run, which is a failure.
func reportSuites(names []string, out io.Writer) error {
	var suites []suite
	for _, name := range names {
		s, err := load(filepath.Join(recordDir, name+".json"))
		if err != nil {
			s = suite{Name: name, Failed: 1, Failures: []string{"the suite did not run to its end"}}
		}
		suites = append(suites, s)
	}
	if failed := report(suites, out); failed > 0 {
		return fmt.Errorf("%d failed", failed)
	}
	if slices.ContainsFunc(suites, func(s suite) bool { return s.Passed == 0 }) {
		return errors.New("a suite ran no test")
	}
	return nil
}
