// Command reference writes docs/reference: custom resources, command line, metrics, reasons of
// conditions and Events, and configuration. It reads all of this from the definitions, the
// programs' --help and the source, so that no page can differ from the code. It must not know what
// any of these do.
//
//	reference ROOT    write ROOT/docs/reference
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "reference: give the root directory of the repository")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	programs, err := commandLines(root)
	if err != nil {
		return err
	}
	code, err := parseCode(root, "api", "internal", "cmd")
	if err != nil {
		return err
	}
	var failed error
	write := func(name, text string, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "docs/reference", name), []byte(text), 0o644)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	resources, err := resourcesPage(filepath.Join(root, "api/crds"))
	write("resources.md", resources, err)
	write("cli.md", cliPage(programs), nil)
	metrics, err := metricsPage(code)
	write("metrics.md", metrics, err)
	events, err := reasonsPage(code)
	write("events.md", events, err)
	configuration, err := configurationPage(root, programs, code)
	write("configuration.md", configuration, err)
	return failed
}
