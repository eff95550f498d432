package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/jinja"
)

func newJinjaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jinja",
		Short: "Work on the templates of provisioners",
	}
	cmd.AddCommand(newJinjaEvalCommand())
	return cmd
}

// pvcsUsage is the help text of --pvcs.
const pvcsUsage = "file with the claims and volumes for get_pvc and get_pv: one JSON object, with key namespace/name for claims and name for volumes"

// jinjaEval is one evaluation requested on the command line.
type jinjaEval struct {
	contextFile, objectsFile string
}

func newJinjaEvalCommand() *cobra.Command {
	var eval jinjaEval
	cmd := &cobra.Command{
		Use:   "eval [--context FILE] [--pvcs FILE] TEMPLATE|-",
		Short: "Evaluate a template and print the result as JSON",
		Long: "Evaluate a template, given as the argument or, with -, on standard input, and print the result as\n" +
			"JSON: a string, or the value of the text as YAML if the template sets yaml to true.\n\n" +
			"An error in the template is printed as JSON too, {\"error\": kind, \"message\": text, \"line\": n,\n" +
			"\"column\": n}, with exit status 1. Standard error shows the line with a caret.",
		Example: "  tarn jinja eval '{{ 1 + 2 }}'\n" +
			"  tarn jinja eval --context vars.json --pvcs claims.json - < script.sh.j2",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return eval.run(cmd, args[0]) },
	}
	cmd.Flags().StringVar(&eval.contextFile, "context", "", "file with the variables, one JSON object")
	cmd.Flags().StringVar(&eval.objectsFile, "pvcs", "", pvcsUsage)
	return cmd
}

func (j *jinjaEval) run(cmd *cobra.Command, template string) error {
	if template == "-" {
		text, err := io.ReadAll(cmd.InOrStdin())
		if err != nil {
			return fmt.Errorf("reading the template from standard input: %w", err)
		}
		template = string(text)
	}
	vars := map[string]any{}
	if err := readJSONObject(j.contextFile, "--context", &vars); err != nil {
		return err
	}
	if j.objectsFile != "" {
		objects := map[string]any{}
		if err := readJSONObject(j.objectsFile, "--pvcs", &objects); err != nil {
			return err
		}
		vars["get_pvc"], vars["get_pv"] = steppod.ClaimLookup(objectGetter("claim", 2, objects)), steppod.VolumeLookup(objectGetter("volume", 1, objects))
	}
	value, err := jinja.Evaluate(cmd.Context(), template, vars, jinja.Limits{})
	if err == nil {
		return printJSON(cmd.OutOrStdout(), value)
	}
	var e *jinja.Error
	if !errors.As(err, &e) {
		return err
	}
	cmd.PrintErrln(e.Detail())
	if err := printJSON(cmd.OutOrStdout(), jinjaFailure{string(e.Kind), e.Message, e.Line, e.Column}); err != nil {
		return err
	}
	return exitError{1}
}

// jinjaFailure is an error as it is printed. Line and Column start at 1.
type jinjaFailure struct {
	Kind    string `json:"error"`
	Message string `json:"message"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
}

// objectGetter returns get_pvc or get_pv for the objects of a file. The first names arguments name
// the object; a default value may follow them.
func objectGetter(kind string, names int, objects map[string]any) jinja.Func {
	return func(_ context.Context, args []any) (any, error) {
		key := args[0].(string)
		if names == 2 {
			key = args[1].(string) + "/" + key
		}
		object, ok := objects[key]
		switch {
		case ok:
			return object, nil
		case len(args) > names:
			return args[names], nil
		}
		return nil, fmt.Errorf("--pvcs has no %s %s", kind, key)
	}
}

// readJSONObject reads one JSON object from a file. Without a file name it reads nothing.
func readJSONObject(file, flag string, into *map[string]any) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %s must contain one JSON object: %w", flag, file, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %s must contain one JSON object and nothing after it", flag, file)
	}
	return nil
}

func printJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(value)
}
