package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"tarn.dev/tarn/internal/cli/terminal"
)

// output is --output of a command that prints objects, a flag that takes only what
// can be printed.
type output string

// The values of --output.
const (
	outputTable output = "table"
	outputJSON  output = "json"
	outputYAML  output = "yaml"
)

var outputs = []string{string(outputTable), string(outputJSON), string(outputYAML)}

// register adds the flag to a command.
func (o *output) register(cmd *cobra.Command) {
	*o = outputTable
	cmd.Flags().VarP(o, "output", "o", "table for users; json or yaml for programs")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
}

// String is the value, for the flag.
func (o *output) String() string { return string(*o) }

// Type is what --help calls the value.
func (o *output) Type() string { return "format" }

// Set takes the value of the flag.
func (o *output) Set(text string) error {
	if !slices.Contains(outputs, text) {
		return fmt.Errorf("give one of %s", strings.Join(outputs, ", "))
	}
	*o = output(text)
	return nil
}

// print writes a value as it was asked for; as a table it is what table writes, without
// what a terminal would act on. The fields of JSON and YAML are the same.
func (o output) print(w io.Writer, value any, table func(io.Writer) error) error {
	switch o {
	case outputJSON:
		return printIndented(w, value)
	case outputYAML:
		text, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("writing YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	return table(terminal.Clean(w))
}

// printIndented writes a value as JSON for people and programs alike.
func printIndented(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
