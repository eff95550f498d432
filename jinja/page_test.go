package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// pageBlock is a fenced block of a page: its label, its text, and the line it starts on.
type pageBlock struct {
	label, text string
	line        int
}

func readBlocks(t *testing.T, file string) []pageBlock {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []pageBlock
	var open *pageBlock
	for i, line := range strings.Split(string(data), "\n") {
		switch {
		case open == nil && strings.HasPrefix(line, "```"):
			open = &pageBlock{label: strings.TrimPrefix(line, "```"), line: i + 1}
		case open != nil && line == "```":
			open.text = strings.TrimSuffix(open.text, "\n")
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return blocks
}

// TestTheExamplesOfThePageDoWhatItSays runs each block labelled jinja of the page
// for provisioner authors; the block after it is the answer.
func TestTheExamplesOfThePageDoWhatItSays(t *testing.T) {
	blocks := readBlocks(t, "../docs/reference/templates.md")
	get := func(found map[string]any, names int) Func {
		return func(_ context.Context, args []any) (any, error) {
			object, ok := found[fmt.Sprint(args[:names])]
			switch {
			case ok:
				return object, nil
			case len(args) > names:
				return args[names], nil
			}
			return nil, fmt.Errorf("there is no %s", args[:names])
		}
	}
	vars := map[string]any{
		"get_pvc": getPVC(get(map[string]any{"[base team-b]": map[string]any{"spec": map[string]any{"volumeName": "pv-7"}}}, 2)),
		"get_pv": get(map[string]any{"[pv-7]": map[string]any{"spec": map[string]any{
			"capacity": map[string]any{"storage": "1.5Gi"}, "csi": map[string]any{"volumeHandle": "vol-7"},
		}}}, 1),
	}
	examples := 0
	for i, b := range blocks {
		if b.label == "json context" {
			d := json.NewDecoder(strings.NewReader(b.text))
			d.UseNumber()
			if err := d.Decode(&vars); err != nil {
				t.Fatal(err)
			}
		}
		if b.label != "jinja" {
			continue
		}
		examples++
		t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
			if i+1 == len(blocks) {
				t.Fatal("the example has no answer")
			}
			checkExample(t, b.text, blocks[i+1], vars)
		})
	}
	if examples < 40 {
		t.Errorf("the page has only %d examples", examples)
	}
}

func checkExample(t *testing.T, source string, answer pageBlock, vars map[string]any) {
	t.Helper()
	got, err := Evaluate(context.Background(), source, vars, Limits{})
	if answer.label == "error" {
		kind, message, _ := strings.Cut(answer.text, ": ")
		var e *Error
		ok := errors.As(err, &e)
		if !ok || string(e.Kind) != kind || !strings.Contains(e.Message, message) {
			t.Errorf("got %v, %v\nwant an error of kind %s with %q", got, err, kind, message)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	switch answer.label {
	case "text":
		if got != answer.text {
			t.Errorf("got  %q\nwant %q", got, answer.text)
		}
	case "json":
		compareJSON(t, got, json.RawMessage(answer.text))
	default:
		t.Errorf("the example is followed by a block labelled %q", answer.label)
	}
}

func TestThePageNamesEveryFilterAndTest(t *testing.T) {
	data, err := os.ReadFile("../docs/reference/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	aliases := map[string]bool{"d": true, "e": true, "count": true, "equalto": true, "greaterthan": true, "lessthan": true}
	for name := range filterTable {
		if !aliases[name] && !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("the page does not name the filter %s", name)
		}
	}
	for name := range testTable {
		if !aliases[name] && name[0] >= 'a' && !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("the page does not name the test %s", name)
		}
	}
}

func TestTheExampleOfTheREADMEIsOneThatRuns(t *testing.T) {
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	examples := strings.ReplaceAll(string(code), "\n\t", "\n")
	for _, b := range readBlocks(t, "README.md") {
		if b.label == "go" && !strings.Contains(examples, b.text) {
			t.Errorf("README.md:%d: example_test.go does not have this example", b.line)
		}
	}
}
