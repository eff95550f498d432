package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

func TestJSONAndYAMLSayTheSame(t *testing.T) {
	var fromJSON, fromYAML map[string]any
	for format, into := range map[string]*map[string]any{"json": &fromJSON, "yaml": &fromYAML} {
		out, _, status := run(t, "", "pav", "lint", "--output", format, testFile("wrong.yaml"))
		if err := yaml.Unmarshal([]byte(out), into); err != nil || status != 1 {
			t.Fatalf("--output %s: %v, exit status %d:\n%s", format, err, status, out)
		}
		if isJSON := json.Valid([]byte(out)); isJSON != (format == "json") {
			t.Errorf("--output %s prints JSON: %v", format, isJSON)
		}
	}
	if len(fromJSON) < 3 || !reflect.DeepEqual(fromJSON, fromYAML) {
		t.Errorf("JSON says %v\nYAML says %v", fromJSON, fromYAML)
	}
}

func TestATableIsNoCommandToATerminal(t *testing.T) {
	var out bytes.Buffer
	err := outputTable.print(&out, nil, func(w io.Writer) error {
		_, err := fmt.Fprint(w, "SAID\n\x1b[2Jnothing\n")
		return err
	})
	if err != nil || out.String() != "SAID\n[2Jnothing\n" {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

// everyCommand returns a command and all commands below it.
func everyCommand(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, below := range cmd.Commands() {
		all = append(all, everyCommand(below)...)
	}
	return all
}

func TestEveryOutputFlagTakesTheSameAndRefusesTheRest(t *testing.T) {
	seen := 0
	for _, cmd := range everyCommand(NewRoot()) {
		flag := cmd.Flags().Lookup("output")
		if flag == nil {
			continue
		}
		seen++
		for _, format := range outputs {
			if err := cmd.Flags().Set("output", format); err != nil {
				t.Errorf("%s --output %s: %v", cmd.CommandPath(), format, err)
			}
		}
		if err := cmd.Flags().Set("output", "xml"); err == nil || !strings.Contains(err.Error(), "table, json, yaml") {
			t.Errorf("%s --output xml: %v", cmd.CommandPath(), err)
		}
		if flag.DefValue != "table" || flag.Shorthand != "o" {
			t.Errorf("%s: --output has default %q and shorthand %q", cmd.CommandPath(), flag.DefValue, flag.Shorthand)
		}
	}
	if seen < 5 {
		t.Errorf("found %d commands with --output", seen)
	}
}
