package jinja

import "testing"

func TestTaintedValuesAreFoundWhereTheyAreWritten(t *testing.T) {
	taint := Taint{
		Sources:  []string{"pvc", "get_pvc"},
		Filters:  []string{"tobash", "int"},
		Trusted:  []string{"get_pv"},
		Harmless: func(path string) bool { return path == "metadata.name" },
	}
	for _, c := range []struct {
		template string
		want     int
	}{
		{"{{ pvc.metadata.annotations['a'] }}", 1},
		{"{{ pvc.metadata.annotations['a'] | tobash }}", 0},
		{"{{ pvc.metadata.annotations['a'] | upper }}", 1},
		{"{{ pvc.metadata.annotations['a'] | tobash | upper }}", 0},
		{"{{ pvc.metadata.name }}", 0},
		{"{{ pvc['metadata']['name'] }}", 0},
		{"{{ pvc }}", 1},
		{"{{ get_pvc('a', 'b').metadata.labels.x }}", 1},
		{"{{ get_pvc('a', 'b').metadata.name }}", 0},
		{"{{ get_pv(pvc.spec.y).spec.csi.volumeHandle }}", 0},
		{"{{ 'x' ~ pvc.spec.y }}", 1},
		{"{{ 'x-' + (pvc.spec.y | tobash) }}", 0},
		{"{{ params.a or pvc.spec.y }}", 1},
		{"{{ 'a' if pvc.spec.y else 'b' }}", 0},
		{"{{ pvc.spec.y if params.a else 'b' }}", 1},
		{"{{ pvc.spec.y == 'a' }}", 0},
		{"{{ params.a | default(pvc.spec.y) }}", 1},
		{"{{ [1, pvc.spec.y] | join(' ') }}", 1},
		{"{% set a = pvc.spec.y %}{{ a }}", 1},
		{"{% set a = pvc.spec.y | tobash %}{{ a }}", 0},
		{"{% set a = pvc.spec.y %}{% set a = 'b' %}{{ a }}", 0},
		{"{% set a = 'b' %}{% if params.x %}{% set a = pvc.spec.y %}{% endif %}{{ a }}", 1},
		{"{% set a = pvc.spec.y %}{% if params.x %}{% set a = 'b' %}{% endif %}{{ a }}", 1},
		{"{% set a %}x{{ pvc.spec.y }}{% endset %}{{ a }}", 1},
		{"{% set a %}x{{ pvc.spec.y | tobash }}{% endset %}{{ a }}", 0},
		{"{% for l in pvc.metadata.labels %}{{ l }}{% endfor %}", 1},
		{"{% for l in params %}{{ l }}{% endfor %}", 0},
		{"{% with a = pvc.spec.y %}{{ a }}{% endwith %}", 1},
		{"{% filter tobash %}{{ pvc.spec.y }}{% endfilter %}", 0},
		{"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(pvc.spec.y) }}", 1},
		{"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(params.a) }}", 0},
		{"{{ pvc.spec.x }}{{ pvc.spec.y }}", 2},
		{"{% raw %}{{ pvc.spec.y }}{% endraw %}{# {{ pvc.spec.y }} #}", 0},
	} {
		parsed, err := Parse(c.template)
		if err != nil {
			t.Fatalf("%s: %v", c.template, err)
		}
		if got := parsed.Tainted(taint); len(got) != c.want {
			t.Errorf("%s: found %v, want %d", c.template, got, c.want)
		}
	}
	for template, want := range map[string]bool{
		"{% set yaml = true %}a": true, "{% if a %}{% set yaml = true %}{% endif %}": true, "{{ yaml }}": false, "a": false,
	} {
		if parsed, err := Parse(template); err != nil || parsed.SetsYAML() != want {
			t.Errorf("%s: %v, SetsYAML is not %t", template, err, want)
		}
	}
	parsed, err := Parse("echo\n  {{ pvc.spec.y }}")
	if err != nil {
		t.Fatal(err)
	}
	if got := parsed.Tainted(taint); len(got) != 1 || got[0].Line != 2 {
		t.Errorf("the place is %v, want one of line 2", got)
	}
}
