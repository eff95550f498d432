package steppod

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"tarn.dev/tarn/jinja"
)

// expand does what Kubernetes documents for the kubelet and command, args and env.
func expand(text string) string {
	var out strings.Builder
	for text != "" {
		name, rest, closed := strings.Cut(strings.TrimPrefix(text, "$("), ")")
		switch {
		case strings.HasPrefix(text, "$$"):
			out.WriteByte('$')
			text = text[2:]
		case strings.HasPrefix(text, "$(") && closed && name == "SECRET":
			out.WriteString("top-secret")
			text = rest
		case strings.HasPrefix(text, "$(") && closed:
			out.WriteString("$(" + name + ")")
			text = rest
		default:
			out.WriteByte(text[0])
			text = text[1:]
		}
	}
	return out.String()
}

// argOf is the only argument of a container after evaluation of the template.
func argOf(template string, vars map[string]any) (string, error) {
	section := map[string]any{"podTemplate": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"args": []any{template}}}}}}
	value, err := evaluateLiterally(context.Background(), section, vars, jinja.Limits{})
	if err != nil {
		return "", err
	}
	spec := value.(map[string]any)["podTemplate"].(map[string]any)["spec"].(map[string]any)
	return spec["containers"].([]any)[0].(map[string]any)["args"].([]any)[0].(string), nil
}

func TestValuesArriveAsTheyAreAndReferencesOfAuthorsAreExpanded(t *testing.T) {
	for _, c := range []struct{ name, template, value, want string }{
		{"a value that refers to a Secret", "it is {{ v }}", "$(SECRET)", "it is $(SECRET)"},
		{"the same for a shell", "echo {{ v | tobash }}", "$$5 $(SECRET)", "echo '$$5 $(SECRET)'"},
		{"an author's reference", "user $(SECRET) {{ v }}", "a", "user top-secret a"},
		{"an author's doubled dollar", "$$(SECRET) {{ v }}", "a", "$(SECRET) a"},
		{"a dollar before a value", "${{ v }}", "(SECRET)", "$(SECRET)"},
		{"a dollar before a value with a dollar", "${{ v }}", "$(SECRET)", "$$(SECRET)"},
		{"two dollars before a value", "$${{ v }}", "(SECRET)", "$(SECRET)"},
		{"a value before an author's parenthesis", "{{ v }}(SECRET)", "$", "$(SECRET)"},
		{"a value in a shell's substitution", "x=$(cmd {{ v | tobash }})", "a$$b $(SECRET)", "x=$(cmd 'a$$b $(SECRET)')"},
		{"a value that ends a shell's substitution", "x=$(cmd {{ v }})", "x) $(SECRET) $$", "x=$(cmd x) $(SECRET) $$)"},
		{"a value in a variable", "{% set x %}{{ v }}{% endset %}{{ x }}", "$(SECRET)", "$(SECRET)"},
		{"a value in a macro", "{% macro m() %}{{ v }}{% endmacro %}{{ m() }}", "$(SECRET)", "$(SECRET)"},
		{"a value in a filter block", "{% filter upper %}{{ v }}{% endfilter %}", "$(SECRET)", "$(SECRET)"},
		{"a value in a call block", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ v }}{% endcall %}", "$(SECRET)", "$(SECRET)"},
		{"a value in a loop", "{% for x in [v, [v]] recursive %}{{ x if x is string else loop(x) }}{% endfor %}", "$(SECRET)", "$(SECRET)$(SECRET)"},
		{"a value in a block", "{% block b %}{{ v }}{% endblock %}{{ self.b() }}", "$(SECRET)", "$(SECRET)$(SECRET)"},
		{"a filter sees the value as it is", "{{ v | length }} {{ v | replace('$', 'S') }} {{ v == '$(SECRET)' }}", "$(SECRET)", "9 S(SECRET) True"},
	} {
		t.Run(c.name, func(t *testing.T) {
			arg, err := argOf(c.template, map[string]any{"v": c.value})
			if err != nil {
				t.Fatal(err)
			}
			if got := expand(arg); got != c.want {
				t.Errorf("%s gives the API server %q and the container %q, want %q", c.template, arg, got, c.want)
			}
		})
	}
}

func TestAnyMixtureOfTextAndValuesArrives(t *testing.T) {
	literals := rapid.SampledFrom([]string{"", "a", "$", "$$", "$$$", "$(SECRET)", "b$(SECRET)$"})
	values := rapid.StringOfN(rapid.SampledFrom([]rune("$()SECRTx'\n\ue000")), 0, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		var template, want strings.Builder
		vars := map[string]any{}
		for i := range rapid.IntRange(1, 4).Draw(t, "parts") {
			literal, value := literals.Draw(t, "literal"), values.Draw(t, "value")
			fmt.Fprintf(&template, "%s{{ v%d }}", literal, i)
			want.WriteString(expand(literal) + value)
			vars[fmt.Sprintf("v%d", i)] = value
		}
		arg, err := argOf(template.String(), vars)
		if err != nil {
			t.Fatal(err)
		}
		if got := expand(arg); got != want.String() {
			t.Fatalf("%q with %v gives the API server %q and the container %q, want %q", template.String(), vars, arg, got, want.String())
		}
	})
}

func TestDollarsAreDoubledOnlyWhereTheKubeletExpands(t *testing.T) {
	pod := func(dollar string, container map[string]any) map[string]any {
		return map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a$b": dollar}},
			"spec": map[string]any{"hostname": dollar, "containers": []any{container}, "initContainers": []any{container}}}
	}
	section := func(dollar, doubled string) map[string]any {
		container := map[string]any{
			"image": dollar, "command": []any{doubled}, "args": []any{doubled}, "env": []any{map[string]any{"name": dollar, "value": doubled}},
			"volumeMounts":  []any{map[string]any{"mountPath": dollar, "subPath": dollar, "subPathExpr": doubled}},
			"livenessProbe": map[string]any{"exec": map[string]any{"command": []any{doubled}}},
			"lifecycle":     map[string]any{"preStop": map[string]any{"exec": map[string]any{"command": []any{dollar}}}},
		}
		return map[string]any{"handle": dollar, "podTemplate": pod(dollar, container), "nodePodTemplate": pod(dollar, container)}
	}
	evaluated := func(object any) any {
		value, err := evaluateLiterally(t.Context(), object, map[string]any{"v": "$"}, jinja.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	want := section("$", "$$")
	if got := evaluated(section("{{ v }}", "{{ v }}")); !equality.Semantic.DeepEqual(got, any(want)) {
		t.Errorf("got %v, want %v", got, want)
	}
	text, err := yaml.Marshal(section("{{ v }}", "{{ v }}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := evaluated("{% set yaml = true %}" + string(text)); !equality.Semantic.DeepEqual(got, any(want)) {
		t.Errorf("as one YAML template: got %v, want %v", got, want)
	}
	_, err = evaluateLiterally(t.Context(), "{% set yaml = true %}{{ v }}: [", map[string]any{"v": "$"}, jinja.Limits{})
	if err == nil || !strings.Contains(err.Error(), "YAML") || len(err.Error()) > 200 {
		t.Errorf("text that is no YAML gives %v", err)
	}
}
