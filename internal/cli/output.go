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

// output is the value of --output. The flag accepts only the formats that a command can print.
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

// String returns the value, for the flag.
func (o *output) String() string { return string(*o) }

// Type returns the name of the value in --help.
func (o *output) Type() string { return "format" }

// Set takes the value of the flag, or rejects it.
func (o *output) Set(text string) error {
	if !slices.Contains(outputs, text) {
		return fmt.Errorf("give one of %s", strings.Join(outputs, ", "))
	}
	*o = output(text)
	return nil
}

// print writes a value in the format that was asked for. JSON and YAML have the same fields. table
// writes the table; its output is stripped of terminal control characters.
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

// printIndented writes a value as indented JSON.
func printIndented(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
