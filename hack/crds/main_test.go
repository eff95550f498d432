package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// schemaOf is a definition whose only version has a schema, written as YAML.
func schemaOf(t *testing.T, schema string) map[string]*apiext.CustomResourceDefinition {
	t.Helper()
	props := &apiext.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict([]byte(schema), props); err != nil {
		t.Fatal(err)
	}
	one := &apiext.CustomResourceDefinition{}
	one.Name = "things"
	one.Spec.Versions = []apiext.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Schema: &apiext.CustomResourceValidation{OpenAPIV3Schema: props}}}
	return map[string]*apiext.CustomResourceDefinition{one.Name: one}
}

func TestWhatASchemaTakesAwayIsNamed(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{"a field more", "{properties: {a: {type: string}}}", "{properties: {a: {type: string}, b: {type: string}}}", ""},
		{"a field less", "{properties: {a: {type: string}, b: {type: string}}}", "{properties: {a: {type: string}}}", "things v1.b: is gone"},
		{"another type", "{properties: {a: {type: string}}}", "{properties: {a: {type: integer}}}", `things v1.a: type "string" became "integer"`},
		{"another default", "{properties: {a: {type: string, default: one}}}", "{properties: {a: {type: string, default: two}}}", `things v1.a: default "one" became "two"`},
		{"required", "{properties: {a: {type: string}}}", "{required: [a], properties: {a: {type: string}}}", "things v1.a: is required now"},
		{"no longer required", "{required: [a], properties: {a: {type: string}}}", "{properties: {a: {type: string}}}", ""},
		{"fewer values", "{enum: [one, two]}", "{enum: [one]}", `things v1: value "two" is no longer allowed`},
		{"more values", "{enum: [one]}", "{enum: [one, two]}", ""},
		{"any value", "{enum: [one]}", "{}", ""},
		{"some values of any", "{}", "{enum: [one]}", "things v1: only some values are allowed now"},
		{"shorter", "{maxLength: 9}", "{maxLength: 8}", "things v1: maxLength is 8 now"},
		{"longer", "{maxLength: 8, minLength: 2}", "{maxLength: 9, minLength: 1}", ""},
		{"not so short", "{}", "{minLength: 1}", "things v1: minLength is 1 now"},
		{"smaller", "{maximum: 9}", "{maximum: 8}", "things v1: maximum is 8 now"},
		{"not so small", "{minimum: 0}", "{minimum: 1}", "things v1: minimum is 1 now"},
		{"a pattern", "{}", "{pattern: ^a$}", `things v1: pattern is "^a$" now`},
		{"a rule more", "{}", "{x-kubernetes-validations: [{rule: a}]}", `things v1: rule "a" is new`},
		{"a rule less", "{x-kubernetes-validations: [{rule: a}]}", "{}", ""},
		{"null", "{nullable: true}", "{}", "things v1: null is no longer allowed"},
		{"in a list", "{items: {type: string}}", "{items: {type: integer}}", `things v1[]: type "string" became "integer"`},
		{"in a map", "{additionalProperties: {type: string}}", "{additionalProperties: {type: integer}}", `things v1{}: type "string" became "integer"`},
		{"no map", "{additionalProperties: {type: string}}", "{}", "things v1: any name was allowed"},
		{"unknown fields", "{x-kubernetes-preserve-unknown-fields: true}", "{}", "things v1: fields that nobody defined are no longer kept"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			if diff := cmp.Diff(want, broken(schemaOf(t, c.before), schemaOf(t, c.after))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestADefinitionOrVersionThatIsGoneIsNamed(t *testing.T) {
	old := schemaOf(t, "{}")
	if diff := cmp.Diff([]string{"things is gone"}, broken(old, nil)); diff != "" {
		t.Error(diff)
	}
	now := schemaOf(t, "{}")
	now["things"].Spec.Scope = apiext.NamespaceScoped
	now["things"].Spec.Versions[0].Served = false
	if diff := cmp.Diff([]string{"things: scope  became Namespaced", "things v1 is no longer served"}, broken(old, now)); diff != "" {
		t.Error(diff)
	}
}

func TestWhatRequestsAVersionNoLongerAnswersIsNamed(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{"a field to select by less", "{selectableFields: [{jsonPath: .spec.a}, {jsonPath: .spec.b}]}", "{selectableFields: [{jsonPath: .spec.b}]}", "things v1: objects are no longer selected by .spec.a"},
		{"one more", "{}", "{selectableFields: [{jsonPath: .spec.a}]}", ""},
		{"no status", "{subresources: {status: {}}}", "{}", "things v1: subresource status is gone"},
		{"a status", "{}", "{subresources: {status: {}}}", ""},
		{"no scale", "{subresources: {status: {}, scale: {specReplicasPath: .spec.a}}}", "{subresources: {status: {}}}", "things v1: subresource scale is gone"},
		{"another scale", "{subresources: {scale: {specReplicasPath: .spec.a}}}", "{subresources: {scale: {specReplicasPath: .spec.b}}}", "things v1: subresource scale is about other fields now"},
		{"a scale", "{subresources: {status: {}}}", "{subresources: {status: {}, scale: {specReplicasPath: .spec.a}}}", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			of := func(text string) map[string]*apiext.CustomResourceDefinition {
				all := schemaOf(t, "{}")
				if err := yaml.UnmarshalStrict([]byte(text), &all["things"].Spec.Versions[0]); err != nil {
					t.Fatal(err)
				}
				return all
			}
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			if diff := cmp.Diff(want, broken(of(c.before), of(c.after))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Tarn's own definitions are read completely, and compared with themselves break no promise.
func TestTarnsDefinitionsKeepTheirOwnPromises(t *testing.T) {
	found, err := run("../../api/crds", "../../api/crds")
	if err != nil || len(found) > 0 {
		t.Fatalf("found %v, %v", found, err)
	}
}
