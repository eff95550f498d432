package jinja

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// oracleCase is one question to Python's Jinja with its answer: expected, or an error's kind.
type oracleCase struct {
	Name     string          `json:"name"`
	Group    string          `json:"group"`
	Template any             `json:"template"`
	Context  json.RawMessage `json:"context"`
	PVCs     map[string]any  `json:"pvcs"`
	Expected json.RawMessage `json:"expected"`
	Error    string          `json:"error"`
	Message  string          `json:"message"`
	Quirk    string          `json:"quirk"`
}

type oracleFile struct {
	Shared map[string]any `json:"shared_context"`
	Cases  []oracleCase   `json:"cases"`
}

// deviation is an answer other than Python's, on purpose.
type deviation struct {
	reason   string
	expected string // JSON, or
	err      Kind
}

// deviations are by the name of the case; the case must be marked as a quirk.
var deviations = map[string]deviation{
	"filter-103 users | map(attribute='age') | sort | join(',')": {
		reason:   "in the original a lazy sequence cannot be sorted, because its engine ran in asynchronous mode; here, as in Jinja's plain mode, it can",
		expected: `"7,41,41"`,
	},
	"error-57 {{ lipsum(n=1, html=false) | length > 0 }}": {
		reason: "lipsum makes random text for HTML pages; it is left out, and the error says so",
		err:    KindUndefined,
	},
}

func readCases(t testing.TB) []oracleFile {
	t.Helper()
	names, err := filepath.Glob("testdata/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no files of cases in testdata: %v", err)
	}
	var files []oracleFile
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var f oracleFile
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(&f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files = append(files, f)
	}
	return files
}

// varsOf returns the variables of a case, get_pvc among them where the case has claims.
func varsOf(t testing.TB, f oracleFile, c oracleCase) map[string]any {
	t.Helper()
	vars := map[string]any{}
	if string(c.Context) == `"@shared"` {
		for k, v := range f.Shared {
			vars[k] = v
		}
	} else if len(c.Context) > 0 {
		d := json.NewDecoder(bytes.NewReader(c.Context))
		d.UseNumber()
		if err := d.Decode(&vars); err != nil {
			t.Fatalf("%s: context: %v", c.Name, err)
		}
	}
	if c.PVCs != nil {
		vars["get_pvc"] = getPVC(func(_ context.Context, args []any) (any, error) {
			name, namespace := args[0].(string), args[1].(string)
			claim, ok := c.PVCs[namespace+"/"+name]
			if !ok {
				return nil, fmt.Errorf("claim %s/%s not found", namespace, name)
			}
			return claim, nil
		})
	}
	return vars
}

// getPVC is a host function with named parameters, as Tarn has it.
func getPVC(f Func) Function {
	return Function{Params: []string{"name", "namespace", "default"}, Required: 2, Strings: 2, Call: f}
}

func TestAnswersAreThoseOfPython(t *testing.T) {
	for _, f := range readCases(t) {
		for _, c := range f.Cases {
			t.Run(c.Name, func(t *testing.T) {
				if d, ok := deviations[c.Name]; ok {
					if c.Quirk == "" {
						t.Errorf("answered otherwise (%s), but the case is no quirk", d.reason)
					}
					c.Expected, c.Error, c.Message = json.RawMessage(d.expected), string(d.err), d.reason
				}
				got, err := Evaluate(context.Background(), c.Template, varsOf(t, f, c), Limits{})
				if c.Error != "" {
					checkError(t, c, got, err)
					return
				}
				if err != nil {
					t.Fatalf("%v\nwant %s", err, c.Expected)
				}
				compareJSON(t, got, c.Expected)
			})
		}
	}
}

func checkError(t *testing.T, c oracleCase, got any, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("got %#v, want an error of kind %s (%s)", got, c.Error, c.Message)
	}
	e := ownError(err)
	if string(e.Kind) != c.Error {
		t.Errorf("error kind %s (%v), want %s (%s)", e.Kind, err, c.Error, c.Message)
	}
	if strings.Contains(e.Message, "internal error") {
		t.Errorf("%v", err)
	}
	if e.Line < 1 || e.Column < 1 {
		t.Errorf("the error has no position: %v", err)
	}
}

// compareJSON compares a value with JSON text, numbers by what they mean.
func compareJSON(t *testing.T, got any, want json.RawMessage) {
	t.Helper()
	data, err := json.Marshal(got)
	if err != nil {
		t.Fatalf("the result is not JSON: %v", err)
	}
	var a, b any
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(want, &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}
