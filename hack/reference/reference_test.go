package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatIsCodeInATextIsMarked(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"without it $KUBECONFIG or ~/.kube/config.", "without it `$KUBECONFIG` or `~/.kube/config`."},
		{"see --wait=false, (spec.aheadFor) and tarn.dev/host-path", "see `--wait=false`, (`spec.aheadFor`) and `tarn.dev/host-path`"},
		{"read/write of a|b, * for all, <name> and `a <b>`", `read/write of a\|b, \* for all, &lt;name> and ` + "`a <b>`"},
		{"not minimumReplicas, but Ready", "not `minimumReplicas`, but Ready"},
	} {
		if got := code(c.text); got != c.want {
			t.Errorf("%s: got %s, want %s", c.text, got, c.want)
		}
	}
}

func TestACommentBecomesASentenceOfItsOwn(t *testing.T) {
	for _, c := range []struct{ name, comment, want string }{
		{"nodes", "nodes is on how many\nnodes it runs", "On how many nodes it runs."},
		{"left", "left are the mounts.", "The mounts."},
		{"inUse", "inUse says whether it is mounted.", "Says whether it is mounted."},
		{"name", "name of the pod", "Name of the pod."},
		{"size", "size: how large it is", "How large it is."},
	} {
		if got := about(c.name, c.comment); got != c.want {
			t.Errorf("%s: got %q, want %q", c.comment, got, c.want)
		}
	}
}

func TestALongParagraphIsSplitAfterASentence(t *testing.T) {
	got := prose(strings.Repeat("One two three four five. ", 20))
	if paragraphs := strings.Split(got, "\n\n"); len(paragraphs) != 2 || !strings.HasSuffix(paragraphs[0], ".") {
		t.Errorf("got %q", got)
	}
}

func TestHelpIsRead(t *testing.T) {
	c, below := parseHelp("Do it: now.\n\nUsage:\n  tool do [flags]\n  tool do [command]\n\nExamples:\n  tool do\n\nLook:\n  see         See a | b\n\n" +
		"Flags:\n  -h, --help            help for do\n  -o, --output format   how to print (default \"table\")\n      --wait            wait (default true)\n\n" +
		"Global Flags:\n      --context string   which\n\nUse \"tool do [command] --help\" for more information.\n")
	c.path, c.below = "tool do", []*command{{path: "tool do see", short: below[0][1]}}
	want := "\n## tool do\n\nDo it: now.\n\n| command | purpose |\n|---|---|\n| [`tool do see`](#tool-do-see) | See a \\| b |\n\n" +
		"| flag | default | meaning |\n|---|---|---|\n" +
		"| <a id=\"tool-do-output\"></a>`--output`, `-o` | `table` | How to print. |\n| <a id=\"tool-do-wait\"></a>`--wait` | `true` | Wait. |\n\n" +
		"The flags of [`tool`](#tool) apply too.\n\nExamples:\n\n```\ntool do\n```\n"
	if got := commandSection(c, &command{path: "tool"}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// parsed is the code of one package.
func parsed(t *testing.T, text string) []*source {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "a.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return []*source{{directory: "internal/a", files: []*ast.File{file}, constants: map[string]string{"labelNode": "node"}}}
}

func TestMetricsAreFound(t *testing.T) {
	got, err := metricsPage(parsed(t, `package a
var m = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tarn_a_total", Help: "Things done"}, []string{labelNode, "kind"})`))
	if want := "| <a id=\"tarn_a_total\"></a>`tarn_a_total` | counter | `node`, `kind` | Things done. |\n"; err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("%v, got\n%swant at its end\n%s", err, got, want)
	}
	if _, err := metricsPage(parsed(t, `package a
var m = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tarn_a"})`)); err == nil {
		t.Error("a metric without help was accepted")
	}
}

func TestReasonsAreFound(t *testing.T) {
	got, err := reasonsPage(parsed(t, `package a
// Events of a thing. It has few.
const (
	// eventMade: the thing exists.
	eventMade = "Made"
	eventAgain = other.Made
)`))
	want := "\n## Events of a thing\n\nIt has few.\n\n| reason | meaning |\n|---|---|\n| <a id=\"a-made\"></a>`Made` | The thing exists. |\n"
	if err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("%v, got\n%swant at its end\n%s", err, got, want)
	}
	for text, want := range map[string]string{
		"// Events of a thing.\nconst (\n\teventMade = \"Made\"\n)":              "say in a comment above eventMade",
		"// Others.\nconst (\n\t// eventMade: it is.\n\teventMade = \"Made\"\n)": "must begin with",
	} {
		if _, err := reasonsPage(parsed(t, "package a\n"+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
}

func TestAVariableThatTheTableLacksIsAnError(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`package a; var b = os.Getenv("TARN_SECRET")`, "the code reads TARN_SECRET"},
		{`package a; var b = os.Getenv("HO" + "ME")`, "whose name is no constant"},
		{`package a`, "nothing reads GOGC"},
	} {
		if err := checkVariables(parsed(t, c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.text, err, c.want)
		}
	}
}

func TestAFieldGetsItsRow(t *testing.T) {
	directory := t.TempDir()
	definition := `
spec:
  group: example.org
  scope: Cluster
  names: {kind: Thing, shortNames: [th]}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: Thing is a thing.
        properties:
          spec:
            required: [parts]
            properties:
              parts:
                description: parts of the thing
                type: array
                maxItems: 3
                items:
                  type: object
                  properties:
                    color: {description: color is what it looks like, type: string, enum: [red, blue], default: red}
`
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(directory, "things.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(definition)
	got, err := resourcesPage(directory)
	want := "| <a id=\"thing.spec.parts\"></a>`spec.parts` | list of object, at most 3 entries, required | Parts of the thing. |\n" +
		"| <a id=\"thing.spec.parts[].color\"></a>`spec.parts[].color` | string, one of `red`, `blue`, default `\"red\"` | What it looks like. |\n"
	if err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("%v, got\n%swant at its end\n%s", err, got, want)
	}
	write(strings.Replace(definition, "description: parts of the thing", "", 1))
	if _, err := resourcesPage(directory); err == nil || !strings.Contains(err.Error(), "spec.parts has no description") {
		t.Errorf("got %v, want an error that names the field", err)
	}
}
