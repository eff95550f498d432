package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func evaluate(t *testing.T, object any, vars map[string]any) any {
	t.Helper()
	value, err := Evaluate(context.Background(), object, vars, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestAnErrorPointsAtItsPlace(t *testing.T) {
	for source, want := range map[string]struct {
		line, column int
		snippet      string
	}{
		"{{ 1 + }}":                       {1, 8, "{{ 1 + }}"},
		"a\nb {{ nope }}":                 {2, 6, "b {{ nope }}"},
		"a\r\nb {{ nope }}\r\nc":          {2, 6, "b {{ nope }}"},
		"žluť {{ 1 / 0 }}":                {1, 11, "žluť {{ 1 / 0 }}"},
		"{% if x %}\n{{ 1":                {2, 5, "{{ 1"},
		"x\n{% for a in 5 %}{% endfor %}": {2, 4, "{% for a in 5 %}{% endfor %}"},
		"{% macro m() %}\n{{ 1 + 'a' }}\n{% endmacro %}\n{{ m() }}": {2, 6, "{{ 1 + 'a' }}"},
		"{{ 'a' | nosuch }}":               {1, 10, "{{ 'a' | nosuch }}"},
		"{{ [1,\n  'a' | round,\n 2] }}":   {2, 9, "  'a' | round,"},
		"{{ params.a.b }}":                 {1, 13, "{{ params.a.b }}"},
		"{% nosuch %}":                     {1, 4, "{% nosuch %}"},
		"a {# never closed":                {1, 3, "a {# never closed"},
		"{% set yaml = true %}\n{{ '[' }}": {1, 8, "{% set yaml = true %}"},
	} {
		_, err := Evaluate(context.Background(), source, map[string]any{"params": map[string]any{}, "x": true}, Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: got %v, want an error", source, err)
			continue
		}
		if e.Line != want.line || e.Column != want.column || e.Snippet != want.snippet {
			t.Errorf("%q: at %d:%d %q, want %d:%d %q (%v)", source, e.Line, e.Column, e.Snippet, want.line, want.column, want.snippet, e)
		}
	}
}

func TestDetailShowsTheLineWithACaret(t *testing.T) {
	_, err := Parse("first\n\tx {{ 1 + }}")
	want := "line 2, column 11: syntax error: unexpected 'end of print statement'\n  \tx {{ 1 + }}\n  \t         ^"
	if got := ownError(err).Detail(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, err = Parse(strings.Repeat("x", 1000) + "{{ 1 + }}")
	lines := strings.Split(ownError(err).Detail(), "\n")
	if len(lines) != 3 || len(lines[1]) > maxSnippet+2 || lines[1][len(lines[2])-1] != '}' {
		t.Errorf("a long line is not cut around the column:\n%s", strings.Join(lines, "\n"))
	}
}

func TestAnErrorInAnObjectNamesTheField(t *testing.T) {
	object := map[string]any{"podTemplate": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"example.com/a": "{{ 1 }}"}},
		"spec": map[string]any{"containers": []any{
			map[string]any{"name": "a", "command": []any{"sh", "-c", "exec {{ nope }}"}},
		}},
	}}
	_, err := Evaluate(context.Background(), object, nil, Limits{})
	const want = "podTemplate.spec.containers[0].command[2]: line 1, column 9: undefined error: an expression must not evaluate to undefined: 'nope' is undefined"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = Evaluate(context.Background(), map[string]any{"a": map[string]any{"b/c": "{{"}}, nil, Limits{})
	if e := ownError(err); e.Path != "a['b/c']" {
		t.Errorf("got the path %q", e.Path)
	}
}

func TestCheckGivesErrorsInTheOrderOfFields(t *testing.T) {
	object := map[string]any{
		"b": []any{"{{", "{{ fine }}", "{% if %}{% endif %}"},
		"a": map[string]any{"z": "{{ 1 | nosuch }}", "y": "{{ nope.x }}", "x": 5},
		"c": "{% for %}",
	}
	for range 20 {
		var got []string
		for _, e := range Check(object) {
			got = append(got, fmt.Sprintf("%s %s %d:%d", e.Path, e.Kind, e.Line, e.Column))
		}
		want := []string{"a.z syntax 1:8", "b[0] syntax 1:3", "b[2] syntax 1:7", "c syntax 1:8", "c syntax 1:10"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("want -, got +:\n%s", diff)
		}
	}
	if errs := Check("{{ fine }}"); errs != nil {
		t.Errorf("got %v for a good template", errs)
	}
}

func TestEvaluateGivesANewObject(t *testing.T) {
	inner := map[string]any{"t": "{{ x }}", "n": int64(5)}
	object := map[string]any{"m": inner, "l": []any{inner, nil, true, 2.5}}
	got := evaluate(t, object, map[string]any{"x": "{{ y }}"})
	want := map[string]any{
		"m": map[string]any{"t": "{{ y }}", "n": int64(5)},
		"l": []any{map[string]any{"t": "{{ y }}", "n": int64(5)}, nil, true, 2.5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if inner["t"] != "{{ x }}" {
		t.Error("the object given was changed")
	}
}

// Kubernetes copies objects with a function that knows int64, float64, string,
// bool, nil, json.Number, maps and lists only, and panics at an int.
func TestYAMLGivesTheTypesKubernetesCopies(t *testing.T) {
	got := evaluate(t, "{% set yaml = true %}{a: 1, b: 1.5, c: [true, ~, x], d: 123456789012345678901234567890}", nil)
	want := map[string]any{"a": int64(1), "b": 1.5, "c": []any{true, nil, "x"}, "d": json.Number("123456789012345678901234567890")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestVariablesOfEveryJSONLikeTypeCanBeUsed(t *testing.T) {
	vars := map[string]any{
		"i": 1, "i64": int64(2), "i32": int32(3), "u": uint64(1 << 63), "n": json.Number("4"), "big": json.Number("99999999999999999999"), "f": json.Number("1.5"),
		"sm": map[string]string{"k": "v"}, "sl": []string{"a", "b"}, "deep": []any{int64(5), map[string]any{"x": json.Number("6")}},
	}
	source := "{{ i + i64 + i32 + n }} {{ u + 1 }} {{ big + 1 }} {{ f * 2 }} {{ sm.k }} {{ sl | join }} {{ deep[0] + deep[1].x }} {{ deep == [5, {'x': 6}] }} {{ deep | tojson }} {{ deep }}"
	got := evaluate(t, strings.TrimSuffix(source, " {{ deep }}"), vars)
	if want := `10 9223372036854775809 100000000000000000000 3.0 v ab 11 True [5, {"x": 6}]`; got != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

type secret struct{ Token string }

func (secret) Reveal() string { return "token" }

func TestNothingOfAGoValueCanBeReached(t *testing.T) {
	vars := map[string]any{"s": secret{"token"}, "p": &secret{"token"}, "e": errors.New("x"), "l": []any{&secret{"token"}}}
	for _, source := range []string{
		"{{ s.Token }}", "{{ s.Reveal() }}", "{{ p.Token }}", "{{ s ~ '' }}", "{{ s | tojson }}", "{{ s['Token'] }}", "{{ s | attr('Token') }}",
		"{{ e.Error() }}", "{{ l[0].Token }}", "{{ l ~ '' }}", "{{ l | map(attribute='Token') | join }}", "{{ l | tojson }}", "{{ '{0.Token}'.format(s) }}",
		"{% for x in l %}{{ x.Token }}{% endfor %}", "{{ l | sort | length }}{{ l[0] }}", "{{ s == s }}", "{{ {s: 1} }}", "{{ s is defined }}",
	} {
		value, err := Evaluate(context.Background(), source, vars, Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindType || strings.Contains(e.Message, "internal") {
			t.Errorf("%s: got %v, %v; want a type error", source, value, err)
		}
		if s, _ := value.(string); strings.Contains(s, "token") {
			t.Errorf("%s: leaks %s", source, s)
		}
	}
}

func TestAHostFunctionIsCalledOnceWithPlainValues(t *testing.T) {
	calls := 0
	vars := map[string]any{"host": Func(func(_ context.Context, args []any) (any, error) {
		calls++
		want := []any{map[string]any{"a": []any{1, "x"}}, nil}
		if diff := cmp.Diff(want, args); diff != "" {
			t.Errorf("want -, got +:\n%s", diff)
		}
		return map[string]any{"n": int64(7)}, nil
	})}
	got := evaluate(t, "{% set yaml = true %}{{ host({'a': (1, 'x')}, none).n + 1 }}", vars)
	if got != int64(8) || calls != 1 {
		t.Errorf("got %v after %d calls, want 8 after one", got, calls)
	}
}

func TestTheErrorOfAHostFunctionCanBeUnwrapped(t *testing.T) {
	cause := errors.New("forbidden")
	vars := map[string]any{"get_pvc": getPVC(func(context.Context, []any) (any, error) { return nil, fmt.Errorf("reading: %w", cause) })}
	_, err := Evaluate(context.Background(), map[string]any{"a": "{{ get_pvc('x', 'y') }}"}, vars, Limits{})
	if !errors.Is(err, cause) || ownError(err).Kind != KindLookup || ownError(err).Path != "a" {
		t.Errorf("got %v", err)
	}
	for _, source := range []string{"{{ get_pvc('x') }}", "{{ get_pvc('x', 5) }}", "{{ get_pvc('x', 'y', 'z', 'z') }}", "{{ get_pvc('x', space='y') }}", "{{ get_pvc(nope, 'y') }}", "{{ get_pvc() }}"} {
		if _, err := Evaluate(context.Background(), source, vars, Limits{}); err == nil || ownError(err).Kind != KindType {
			t.Errorf("%s: got %v, want a type error", source, err)
		}
	}
}

func TestAPanicOfAHostFunctionDoesNotEscape(t *testing.T) {
	vars := map[string]any{"f": Func(func(context.Context, []any) (any, error) { panic("boom") })}
	_, err := Evaluate(context.Background(), "{{ f() }}", vars, Limits{})
	if err == nil || ownError(err).Kind != KindRuntime || ownError(err).Line != 1 {
		t.Errorf("got %v", err)
	}
}

func TestATemplateCanBeExecutedAtOnceByMany(t *testing.T) {
	tmpl, err := Parse("{% macro m(x) %}[{{ x }}]{% endmacro %}{% set ns = namespace(n=0) %}{% for i in range(50) %}{% set ns.n = ns.n + i %}{{ m(i) }}{% endfor %}{{ ns.n }}{{ v }}")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 50 {
				r, err := tmpl.Execute(context.Background(), map[string]any{"v": i}, Limits{})
				if err != nil || !strings.HasSuffix(r.Text, fmt.Sprintf("[49]1225%d", i)) {
					t.Errorf("got %q, %v", r.Text, err)
					return
				}
			}
		})
	}
	group.Wait()
}

func TestGlobalsAreTheNamesReadAndNowhereAssigned(t *testing.T) {
	tmpl, err := Parse("{% set a = b %}{% for i in c %}{{ i.x }}{{ loop.index }}{% endfor %}{{ d | default(e) }}{{ range(a) }}{% macro m(f) %}{{ f }}{% endmacro %}{{ m() }}{{ b }}")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b", "c", "d", "e", "loop", "range"}, tmpl.Globals()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "e", "f", "i", "loop", "m", "range"}, tmpl.Reads()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestPathsAreTheConstantKeysThatAreRead(t *testing.T) {
	for source, want := range map[string]string{
		"no template": "",
		"{{ a }}":     "a",
		"{{ a.b }}{{ a['c'] }}{{ a.get('d', 1) }}":        "a b, a c, a d",
		"{{ (a).b | default('x') }}":                      "a b",
		"{{ a['x.y/z'] }}":                                "a x.y/z",
		"{% if 'b' in a or 'c' not in a %}{% endif %}":    "a b, a c",
		"{{ a.b is defined and not a['b'] }}":             "a b",
		"{{ a.b.c['d'].split(',')[0] }}":                  "a b c d",
		"{{ a.b }}{{ a.b.c }}":                            "a b, a b c",
		"{{ a.b }}{{ a }}":                                "a, a b",
		"{{ a[b] }}{{ a.get(c) }}{{ a['x' ~ b] }}":        "a, b, c",
		"{{ a.items() }}":                                 "a",
		"{{ 'b' in a == true }}":                          "a",
		"{{ 'b' == a }}":                                  "a",
		"{{ a in 'b' }}":                                  "a",
		"{{ a | length }}{{ a is mapping }}":              "a",
		"{% for k in a %}{{ a.b }}{% endfor %}":           "a, a b, k",
		"{% for k in a.b %}{{ k }}{% endfor %}":           "a b, k",
		"{% set c = a %}{{ c.b }}":                        "a, c, c b",
		"{% macro m(x) %}{{ x.y }}{% endmacro %}{{m(a)}}": "a, m, x y",
		"{{ a[0].b }}{{ a[1:] }}{{ a['b', 'c'] }}":        "a",
		"{{ f(a.b, k=a.c, *a.d) }}":                       "a b, a c, a d, f",
		"{{ f(a.b).c }}{{ a.b(f).c }}":                    "a, a b, f, f c",
		"{{ a.b.c.d.e.f.g.h.i.j }}":                       "a b c d e f g h",
	} {
		template, err := Parse(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		var got []string
		for _, path := range template.Paths() {
			got = append(got, strings.Join(path, " "))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: got %q, want %q", source, strings.Join(got, ", "), want)
		}
	}
}

func TestWhatIsLeftOutIsNamed(t *testing.T) {
	for source, want := range map[string]string{
		"{{ 'x' | urlize }}":                       "urlize",
		"{{ lipsum() }}":                           "lipsum",
		"{% include 'x' %}":                        "include",
		"{% import 'x' as y %}":                    "import",
		"{% from 'x' import y %}":                  "from",
		"{% extends 'x' %}":                        "extends",
		"{% autoescape true %}{% endautoescape %}": "autoescape",
		"{{ '\\N{DASH}' }}":                        "\\N{...}",
		"{{ 'a'.encode('latin-1') }}":              "latin-1",
		"{{ (-1) ** 0.5 }}":                        "complex",
		"{% set yaml = true %}!!binary aGk=":       "!!binary",
		"{% do x %}":                               "do",
		"{{ 'a' | b64encode }}":                    "b64encode",
		"{{ 1 is prime }}":                         "prime",
		"{% block a required %}{% endblock %}":     "required",
		"{{ 'abc'.nosuch() }}":                     "nosuch",
	} {
		_, err := Evaluate(context.Background(), source, nil, Limits{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that names %s", source, err, want)
		}
	}
}
