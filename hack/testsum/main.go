// Command testsum runs one suite of Go tests, shows failures as they happen, and records the
// results. At the end it sums the records up. It knows `go test -json` but not what is tested.
//
//	testsum run NAME -- go test -json ./...    runs a suite, status 1 if it failed
//	testsum report NAME [NAME]...              sums up the suites named, and holds them against the baseline
//	testsum baseline NAME [NAME]...            makes the suites' records the baseline
//
// After each further -- comes another command. Its tests run beside those of the first and count
// with them.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// recordDir is the directory of the records between run and report, below make's working directory.
const recordDir = ".tarn/tests"

// baselineFile is the checked-in baseline, below make's working directory.
const baselineFile = "hack/testsum/baseline"

const usage = "use `testsum run NAME -- COMMAND [ARGUMENT]... [-- COMMAND [ARGUMENT]...]...`, `testsum report NAME [NAME]...` or `testsum baseline NAME [NAME]...`"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) >= 4 && args[0] == "run" && args[2] == "--" {
		if commands := split(args[3:]); commands != nil {
			return runSuite(args[1], commands, out)
		}
	}
	if len(args) >= 2 && args[0] == "report" {
		return reportSuites(args[1:], out)
	}
	if len(args) >= 2 && args[0] == "baseline" {
		return writeBaseline(args[1:])
	}
	return errors.New(usage)
}

// split gives the commands between the --; nil if one of them is empty.
func split(args []string) [][]string {
	var commands [][]string
	for {
		end := slices.Index(args, "--")
		if end == 0 || len(args) == 0 {
			return nil
		}
		if end < 0 {
			return append(commands, args)
		}
		commands, args = append(commands, args[:end]), args[end+1:]
	}
}

// runSuite runs commands in parallel that print the events of `go test -json`. It records them
// together under the suite's name.
func runSuite(name string, commands [][]string, out io.Writer) error {
	if err := os.MkdirAll(recordDir, 0o755); err != nil {
		return err
	}
	record := filepath.Join(recordDir, name+".json")
	if err := os.Remove(record); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	all, shared := newSuite(name), &lockedWriter{to: out}
	parts, errs := make([]*suite, len(commands)), make([]error, len(commands))
	spent, err := openAccount()
	if err != nil {
		fmt.Fprintf(out, "processor time of %s is not counted: %v\n", name, err)
	}
	load := startLoad()
	var running sync.WaitGroup
	for i, command := range commands {
		parts[i] = newSuite(name)
		running.Go(func() { errs[i] = parts[i].run(command, shared) })
	}
	running.Wait()
	for _, part := range parts {
		all.add(part)
	}
	all.Seconds = time.Since(all.began).Seconds()
	all.Load = load()
	all.Wide = os.Getenv("WIDE") != ""
	if spent != nil {
		if all.Processor, err = spent.close(); err != nil { // says nothing about the tests
			all.Processor = 0
			fmt.Fprintf(out, "processor time of %s is not counted: %v\n", name, err)
		}
	}
	if err := all.save(record); err != nil {
		return err
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("suite %s: %w", name, err)
	}
	if all.Failed > 0 {
		return fmt.Errorf("suite %s: %d failed", name, all.Failed)
	}
	return nil
}

// run runs one command and reads its events. It returns an error if the command cannot be started
// or read, which counts as a failure too.
func (s *suite) run(command []string, out io.Writer) error {
	tests := exec.Command(command[0], command[1:]...)
	tests.Stderr = os.Stderr
	events, err := tests.StdoutPipe()
	if err == nil {
		err = tests.Start()
	}
	if err != nil {
		s.finish(err)
		return err
	}
	readErr := s.read(events, out)
	s.finish(tests.Wait())
	if readErr != nil {
		return fmt.Errorf("output of %s: %w", command[0], readErr)
	}
	return nil
}

// lockedWriter keeps the output of parallel commands from being mixed within a write.
type lockedWriter struct {
	lock sync.Mutex
	to   io.Writer
}

func (w *lockedWriter) Write(text []byte) (int, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.to.Write(text)
}

// reportSuites prints a table of the suites and the closing line. A suite without a record did not
// run, which is a failure.
func reportSuites(names []string, out io.Writer) error {
	var suites []suite
	for _, name := range names {
		s, err := load(filepath.Join(recordDir, name+".json"))
		if err != nil {
			s = suite{Name: name, Failed: 1, Failures: []string{"the suite did not run to its end"}}
		}
		suites = append(suites, s)
	}
	known, err := readBaseline()
	if err != nil {
		return err
	}
	costs := known.compare(suites, out) // before the closing line
	if failed := report(suites, out); failed > 0 {
		return fmt.Errorf("%d failed", failed)
	}
	if slices.ContainsFunc(suites, func(s suite) bool { return s.Passed == 0 }) {
		return errors.New("a suite ran no test")
	}
	return costs
}
