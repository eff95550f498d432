package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// The tables in testdata hold objects as the API server returned them, and explain's answer about
// them. Most were recorded on a cluster: see e2e/record_test.go. The real gatherer reads them, so
// they know nothing of how explain computes its answer.
//
// To accept changed answers, run `go test ./internal/cli/explain -update`, and read the difference.
var update = flag.Bool("update", false, "write today's answers into testdata")

// table is a file of testdata.
type table struct {
	Cases []tableCase `json:"cases"`
}

// tableCase is a question, the world it is asked in, and the answer.
type tableCase struct {
	Name string `json:"name"`
	// Ask is a kind and a name, as for `tarn explain`.
	Ask string    `json:"ask"`
	Now time.Time `json:"now"`
	// Objects are all that exist. Fields that do not change the answer may be missing.
	Objects []map[string]any `json:"objects"`
	// Fails are the reads that the API server rejects.
	Fails []failure `json:"fails"`
	// Logs maps NAMESPACE/POD/CONTAINER to the end of its log.
	Logs map[string]string `json:"logs"`
	// Answer is what `tarn explain` prints, or its error.
	Answer string `json:"answer"`
}

// asked returns the object that a question names.
func asked(question string) (Object, error) {
	word, name, _ := strings.Cut(question, " ")
	o := Object{Name: name}
	for _, kind := range []Kind{Claim, Volume, Pod, Set, App} {
		if before, _, _ := strings.Cut(Object{Kind: kind}.String(), " "); before == word {
			o.Kind = kind
		}
	}
	if namespace, rest, both := strings.Cut(name, "/"); both {
		o.Namespace, o.Name = namespace, rest
	}
	if o.Kind == "" || o.Name == "" {
		return o, fmt.Errorf("ask: %q is not a kind and a name, such as claim shop/data", question)
	}
	return o, nil
}

// answers explains a case. In a bubble the second look takes no time.
func (c *tableCase) answers(ctx context.Context) (string, error) {
	world, err := newCluster(c.Objects, c.Fails, c.Logs)
	if err != nil {
		return "", err
	}
	about, err := asked(c.Ask)
	if err != nil {
		return "", err
	}
	source := Source{Client: world, Logs: world.logs(), Namespace: "tarn-system"}
	e, err := Explain(ctx, source, about, c.Now)
	if err != nil {
		return "error: " + err.Error() + "\n", nil //nolint:nilerr // it is the answer
	}
	var text bytes.Buffer
	err = e.Print(&text, c.Now)
	return text.String(), err
}

func TestEachRecordedWorldIsExplained(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tables in testdata (%v)", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var of table
			if err := sigsyaml.UnmarshalStrict(data, &of); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			got := make([]string, len(of.Cases))
			for i := range of.Cases {
				c := &of.Cases[i]
				t.Run(c.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						if got[i], err = c.answers(t.Context()); err != nil {
							t.Fatal(err)
						}
					})
					if got[i] != c.Answer && !*update {
						t.Errorf("%s: %s is answered otherwise (-want +got):\n%s", file, c.Ask,
							cmp.Diff(strings.Split(c.Answer, "\n"), strings.Split(got[i], "\n")))
					}
				})
			}
			if *update && !t.Failed() {
				rewrite(t, file, data, got)
			}
		})
	}
}

// rewrite writes a table with new answers. What fits into a line is written into one.
func rewrite(t *testing.T, file string, data []byte, answers []string) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	for i, c := range field(doc.Content[0], "cases").Content {
		answer := field(c, "answer")
		if answer == nil {
			answer = &yaml.Node{Kind: yaml.ScalarNode}
			c.Content = append(c.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "answer"}, answer)
		}
		answer.Tag, answer.Value, answer.Style = "!!str", answers[i], yaml.LiteralStyle
	}
	compact(doc.Content[0], 0)
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(&doc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// field returns a value of a mapping.
func field(of *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(of.Content); i += 2 {
		if of.Content[i].Value == key {
			return of.Content[i+1]
		}
	}
	return nil
}

// compact gives each mapping and list below a node the flow style if it fits into a line. It
// returns the length of the node in that style; -1 means that it does not fit.
func compact(n *yaml.Node, depth int) int {
	const columns = 100
	switch {
	case n.Kind == yaml.ScalarNode:
		if n.Style == yaml.LiteralStyle || strings.Contains(n.Value, "\n") {
			return -1
		}
		quoted, _ := json.Marshal(n.Value) //nolint:errchkjson // a string
		return len(quoted)
	case n.HeadComment+n.LineComment+n.FootComment != "":
		depth = columns
	}
	length, fits := 2, depth > 1
	for _, inner := range n.Content {
		l := compact(inner, depth+1)
		fits = fits && l >= 0
		length += l + 2
	}
	if fits = fits && length+2*depth < columns; !fits {
		n.Style = 0
		return -1
	}
	n.Style = yaml.FlowStyle
	return length
}
