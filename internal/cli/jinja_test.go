package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// evalJinja runs `jinja eval` and returns its standard output, standard error and error.
func evalJinja(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := newJinjaCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"eval"}, args...))
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestJinjaEvalPrintsTheResultAsJSON(t *testing.T) {
	vars := writeFile(t, "vars.json", `{"size": 9007199254740993, "labels": {"b": "<x>", "a": null}}`)
	claims := writeFile(t, "claims.json", `{"team/data": {"spec": {"volumeName": "pv-1"}}, "pv-1": {"spec": {"csi": {"volumeHandle": "vol-7"}}}}`)
	for name, test := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"text":           {"", []string{"{{ 1 + 2 }} <b>"}, `"3 <b>"`},
		"standard input": {"a\n{{ 'b' }}\n", []string{"-"}, `"a\nb"`},
		"a context":      {"", []string{"--context", vars, "{{ size + 1 }}"}, `"9007199254740994"`},
		"yaml":           {"", []string{"--context", vars, "{% set yaml = true %}[{{ labels | tojson }}, {{ size }}, 0777]"}, `[{"a":null,"b":"<x>"},9007199254740993,511]`},
		"a claim":        {"", []string{"--pvcs", claims, "{{ get_pvc('data', namespace='team').spec.volumeName }}"}, `"pv-1"`},
		"its volume":     {"", []string{"--pvcs", claims, "{{ get_pv(get_pvc('data', 'team').spec.volumeName).spec.csi.volumeHandle }}"}, `"vol-7"`},
		"none":           {"", []string{"--pvcs", claims, "{{ get_pvc('gone', 'team', none) is none and get_pv('gone', none) is none }}"}, `"True"`},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := evalJinja(t, test.stdin, test.args...)
			if err != nil || out != test.want+"\n" {
				t.Errorf("got %s, %v; want %s", out, err, test.want)
			}
		})
	}
}

func TestJinjaEvalPrintsAnErrorOfTheTemplateAsJSON(t *testing.T) {
	claims := writeFile(t, "claims.json", `{}`)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"syntax":    {[]string{"x\n  {{ 1 + }}"}, `{"error":"syntax","message":"unexpected 'end of print statement'","line":2,"column":10}`},
		"undefined": {[]string{"{{ nope }}"}, `{"error":"undefined","message":"an expression must not evaluate to undefined: 'nope' is undefined","line":1,"column":4}`},
		"lookup":    {[]string{"--pvcs", claims, "{{ get_pvc('a', 'b') }}"}, `{"error":"lookup","message":"get_pvc: --pvcs has no claim b/a","line":1,"column":11}`},
		"limit":     {[]string{"{{ 'a' * 2000000000 }}"}, `{"error":"limit","message":"a value of 2000000000 characters or items is larger than an evaluation may make","line":1,"column":8}`},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := evalJinja(t, "", test.args...)
			if out != test.want+"\n" {
				t.Errorf("got  %swant %s", out, test.want)
			}
			if status := ExitStatus(err, io.Discard); status != 1 {
				t.Errorf("got error %v with exit status %d, want 1", err, status)
			}
			if !strings.Contains(errOut, "^") {
				t.Errorf("standard error has no caret:\n%s", errOut)
			}
		})
	}
}

func TestJinjaEvalNamesTheFlagOfABadFile(t *testing.T) {
	for flag, text := range map[string]string{"--context": "[1]", "--pvcs": "{} {}"} {
		file := writeFile(t, "bad.json", text)
		_, _, err := evalJinja(t, "", flag, file, "x")
		if err == nil || !strings.Contains(err.Error(), flag) || !strings.Contains(err.Error(), "JSON object") {
			t.Errorf("%s: got %v, want an error that names the flag", flag, err)
		}
	}
	if _, _, err := evalJinja(t, "", "--context", "/nonexistent/vars.json", "x"); err == nil || !strings.Contains(err.Error(), "--context") {
		t.Errorf("a missing file: got %v", err)
	}
}
