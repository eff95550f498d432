package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// chart writes a chart's three files into a directory.
func chart(t *testing.T, values, schema, page string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range map[string]string{"values.yaml": values, "values.schema.json": schema, "README.md": page} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestEveryValueGetsItsRow(t *testing.T) {
	folder := chart(t, "b: {d: [x], c: 1}\na: {}\n",
		`{"properties": {"global": {}, "a": {"description": "Free."}, "b": {"properties": {"c": {"description": "Sea."}, "d": {"description": "Dee."}}}}}`,
		"# Chart\n"+beginMarker+"what was\n"+endMarker+"end\n")
	for range 2 { // the second run changes nothing
		if err := run(folder); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(folder, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		want := "# Chart\n" + beginMarker + "| value | default | meaning |\n|---|---|---|\n" +
			"| `a` | `{}` | Free. |\n| `b.c` | `1` | Sea. |\n| `b.d` | `[\"x\"]` | Dee. |\n" + endMarker + "end\n"
		if string(got) != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

func TestAValueThatOnlyOneOfTheTwoKnowsIsAnError(t *testing.T) {
	for _, c := range []struct{ name, values, schema, page, want string }{
		{"undescribed", "a: 1\n", `{"properties": {"a": {}}}`, "", "a: values.schema.json does not describe it"},
		{"unknown", "a: {b: 1, c: 2}\n", `{"properties": {"a": {"properties": {"b": {"description": "x"}}}}}`, "", "a.c: values.schema.json does not know it"},
		{"without default", "{}\n", `{"properties": {"a": {"description": "x"}}}`, "", "a: values.yaml has no default"},
		{"twice", "a: 1\na: 2\n", `{}`, "", "values.yaml"},
		{"no place", "{}\n", `{}`, "# Chart\n", "no place for the table"},
	} {
		if err := run(chart(t, c.values, c.schema, c.page)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}
