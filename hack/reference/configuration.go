package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// variables are the environment variables that the code may read, with their meaning.
var variables = map[string]string{
	"GOGC":        "How much garbage Go leaves, in percent. If it is set, `tarn controller` does not choose a value itself.",
	"GOMAXPROCS":  "How many processors Go uses. If it is not set, `tarn controller` uses half of the available ones.",
	"GOMEMLIMIT":  "Memory above which Go collects garbage more often. If it is set, `tarn controller` and `tarn node` do not choose a limit themselves.",
	"KUBECONFIG":  "Kubeconfig files of every command without `--kubeconfig`. If neither is set, `~/.kube/config` is used.",
	"NODE_NAME":   "Default of `--node-name` of `tarn node` and `tarn controller`.",
	"NO_COLOR":    "If it is not empty, output has no colours.",
	"TARN_SERVER": "Default of `--server` of `tarn app` and `tarn volume`: a server of `tarn api`.",
	"TARN_TOKEN":  "Token for that server. If it is not set, the token of the kubeconfig is used.",
	"TERM":        "If it is `dumb`, output has neither colours nor progress.",
}

// readElsewhere are variables that a library reads.
var readElsewhere = []string{"KUBECONFIG"}

// configurationPage describes the flags of the programs in a cluster, the variables, and the values
// of the chart.
func configurationPage(root string, programs []*command, code []*source) (string, error) {
	var out strings.Builder
	out.WriteString(header("Configuration", "This page lists what you can set: flags of the programs that run in a cluster, environment variables, and values of the Helm chart. It is for administrators."))
	for _, program := range programs {
		each(program, nil, func(c, _ *command) {
			if runs(c) {
				fmt.Fprintf(&out, "\n## Flags of %s\n\n[`%s`](cli.md#%s): %s\n\n%s", c.path, c.path, slug(c.path), cell(sentence(c.short)), flagTable(c))
			}
		})
	}
	if err := checkVariables(code); err != nil {
		return "", err
	}
	out.WriteString("\n## Environment variables\n\n| variable | meaning |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		fmt.Fprintf(&out, "| %s`%s` | %s |\n", anchor(name), name, cell(variables[name]))
	}
	values, err := chartValues(filepath.Join(root, "charts/tarn/README.md"))
	if err != nil {
		return "", err
	}
	out.WriteString("\n## Values of the Helm chart\n\n" + prose("Set them with `--set NAME=VALUE` or in a file for `--values`. `charts/tarn/values.schema.json` checks them.") + "\n" + values)
	return out.String(), nil
}

// runs reports whether a command runs in a cluster until it is stopped.
func runs(c *command) bool {
	return slices.Contains([]string{"tarn controller", "tarn node", "tarn api"}, c.path)
}

// checkVariables compares the table with what the code reads.
func checkVariables(code []*source) error {
	read := map[string]bool{}
	for _, name := range readElsewhere {
		read[name] = true
	}
	for _, s := range code {
		if strings.HasPrefix(s.directory, "internal/testkit") || strings.HasSuffix(s.directory, "test") {
			continue
		}
		for _, file := range s.files {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) != 1 {
					return true
				}
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Getenv", "LookupEnv"}, f.Sel.Name) {
					read[cmp.Or(s.text(call.Args[0]), "a variable in "+s.directory+" whose name is no constant")] = true
				}
				return true
			})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		if variables[name] == "" {
			return fmt.Errorf("the code reads %s: say in hack/reference/configuration.go what it means", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !read[name] {
			return fmt.Errorf("nothing reads %s: remove it from hack/reference/configuration.go", name)
		}
	}
	return nil
}

var valueRow = regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)`")

// chartValues returns the table that hack/values has written into the chart's README.
func chartValues(page string) (string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", err
	}
	_, table, begins := strings.Cut(string(text), "<!-- values:begin -->\n")
	table, _, ends := strings.Cut(table, "<!-- values:end -->")
	if !begins || !ends {
		return "", fmt.Errorf("%s has no table of values", page)
	}
	return valueRow.ReplaceAllString(table, "| "+anchor("values.$1")+"`$1`"), nil
}
