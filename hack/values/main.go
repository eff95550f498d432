// Command values writes the table of a Helm chart's values. Each has its default from values.yaml
// and its meaning from values.schema.json. A value that is only in one of the two is an error. It
// must not know what the values do.
//
//	values CHART    write the table into CHART/README.md, between its markers
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// The table stands between these lines.
const (
	beginMarker = "<!-- values:begin -->\n"
	endMarker   = "<!-- values:end -->\n"
)

// schema holds the fields read of a JSON schema.
type schema struct {
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "values: give the directory of one chart")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "values:", err)
		os.Exit(1)
	}
}

func run(chart string) error {
	defaults, meaning, err := read(chart)
	if err != nil {
		return err
	}
	rows, err := table("", defaults, meaning)
	if err != nil {
		return err
	}
	page := filepath.Join(chart, "README.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), beginMarker)
	_, after, ends := strings.Cut(rest, endMarker)
	if !begins || !ends {
		return fmt.Errorf("%s has no place for the table: add %sand %sto it", page, beginMarker, endMarker)
	}
	return os.WriteFile(page, []byte(before+beginMarker+"| value | default | meaning |\n|---|---|---|\n"+strings.Join(rows, "")+endMarker+after), 0o644)
}

func read(chart string) (map[string]any, schema, error) {
	var meaning schema
	var defaults map[string]any
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		return nil, meaning, err
	}
	if err := json.Unmarshal(text, &meaning); err != nil {
		return nil, meaning, fmt.Errorf("values.schema.json: %w", err)
	}
	if text, err = os.ReadFile(filepath.Join(chart, "values.yaml")); err != nil {
		return nil, meaning, err
	}
	if err := yaml.UnmarshalStrict(text, &defaults); err != nil {
		return nil, meaning, fmt.Errorf("values.yaml: %w", err)
	}
	return defaults, meaning, nil
}

// table gives the rows for the values below a path, sorted by name.
func table(path string, defaults map[string]any, meaning schema) ([]string, error) {
	var rows []string
	var wrong error
	for _, name := range union(defaults, meaning.Properties) {
		at := path + name
		value, given := defaults[name]
		means, known := meaning.Properties[name]
		inner, isMap := value.(map[string]any)
		switch {
		case !known:
			wrong = errors.Join(wrong, fmt.Errorf("%s: values.schema.json does not know it: describe it there", at))
		case !given && at != "global": // Helm sets that for every chart
			wrong = errors.Join(wrong, fmt.Errorf("%s: values.yaml has no default for it: give one", at))
		case !given:
		case isMap && len(means.Properties) > 0:
			below, err := table(at+".", inner, means)
			rows, wrong = append(rows, below...), errors.Join(wrong, err)
		case means.Description == "":
			wrong = errors.Join(wrong, fmt.Errorf("%s: values.schema.json does not describe it", at))
		default:
			text, err := json.Marshal(value)
			wrong = errors.Join(wrong, err)
			rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s |\n", at, text, means.Description))
		}
	}
	return rows, wrong
}

func union(values map[string]any, properties map[string]schema) []string {
	var names []string
	for name := range values {
		names = append(names, name)
	}
	for name := range properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
