package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

type schema = apiextensionsv1.JSONSchemaProps

// kubernetes are objects that Kubernetes documents itself, each recognized by a field that only it
// has.
var kubernetes = map[string]string{
	"awsElasticBlockStore": "[PersistentVolumeSpec](https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/persistent-volume-v1/)",
	"lastTransitionTime":   "[Condition](events.md)",
}

// resourcesPage describes the custom resources defined in a directory.
func resourcesPage(directory string) (string, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return "", err
	}
	var list, sections strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintf(&list, "| [%s](#%s) | `%s` | %s | %s |\n", crd.Spec.Names.Kind, strings.ToLower(crd.Spec.Names.Kind), crd.Name, crd.Spec.Scope, spans(crd.Spec.Names.ShortNames))
		section, err := resource(&crd)
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		sections.WriteString(section)
	}
	return header("Custom resources", "This page lists every field of Tarn's custom resources. It is for users who write these objects and for administrators who read them.") +
		"\n| kind | resource | scope | short names |\n|---|---|---|---|\n" + list.String() + sections.String(), nil
}

func resource(crd *apiextensionsv1.CustomResourceDefinition) (string, error) {
	kind := crd.Spec.Names.Kind
	version := crd.Spec.Versions[len(crd.Spec.Versions)-1]
	root := version.Schema.OpenAPIV3Schema
	var out strings.Builder
	fmt.Fprintf(&out, "\n## %s\n\n```yaml\napiVersion: %s/%s\nkind: %s\n```\n\n%s", kind, crd.Spec.Group, version.Name, kind, prose(root.Description))
	for _, part := range []string{"spec", "status"} {
		props, ok := root.Properties[part]
		if !ok {
			continue
		}
		f := fields{kind: strings.ToLower(kind)}
		f.below(part, &props)
		if f.wrong != nil {
			return "", f.wrong
		}
		fmt.Fprintf(&out, "\n### %s of %s\n\n", part, kind)
		if props.Description != "" {
			out.WriteString(prose(props.Description) + "\n")
		}
		out.WriteString("| field | type | meaning |\n|---|---|---|\n" + f.rows.String())
		if rules := messages(&props); rules != nil && part == "spec" {
			out.WriteString("\nThe API server also checks:\n\n" + items(rules))
		}
	}
	if rules := messages(root); rules != nil {
		out.WriteString("\nThe API server checks of the whole object:\n\n" + items(rules))
	}
	return out.String(), nil
}

// fields makes the rows of a table of fields.
type fields struct {
	kind  string
	rows  strings.Builder
	wrong error
}

// below writes a row for each field below a path.
func (f *fields) below(path string, s *schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := s.Properties[name]
		inner, suffix, foreign := element(&field)
		at := path + "." + name
		meaning := about(name, field.Description)
		if meaning == "" {
			f.wrong = fmt.Errorf("%s has no description: give its Go field a comment", at)
			return
		}
		for _, message := range messages(&field) {
			meaning += " Checked: " + strings.TrimSuffix(message, ".") + "."
		}
		meaning = cell(meaning)
		for _, pattern := range []string{field.Pattern, inner.Pattern} {
			if pattern != "" && !field.XIntOrString && !inner.XIntOrString {
				meaning += " Pattern: " + span(pattern)
				break
			}
		}
		fmt.Fprintf(&f.rows, "| %s%s | %s | %s |\n", anchor(f.kind+"."+at), span(at), strings.Join(kindOf(&field, slices.Contains(s.Required, name)), ", "), meaning)
		if foreign == "" {
			f.below(at+suffix, inner)
		}
	}
}

// element gives the element type of a list or map, else the field itself. foreign names the
// Kubernetes type, if it is one.
func element(s *schema) (inner *schema, suffix, foreign string) {
	inner = s
	switch {
	case s.Items != nil:
		inner, suffix = s.Items.Schema, "[]"
	case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		inner, suffix = s.AdditionalProperties.Schema, ".*"
	}
	for name, link := range kubernetes {
		if _, has := inner.Properties[name]; has {
			return inner, suffix, link
		}
	}
	return inner, suffix, ""
}

// kindOf describes the values of a field: its type, limits, default, and whether it is required.
func kindOf(s *schema, required bool) []string {
	inner, suffix, foreign := element(s)
	name := foreign
	switch {
	case name != "":
	case inner.XIntOrString:
		name = "quantity"
	case inner.Format == "date-time":
		name = "time"
	case inner.Type == "":
		name = "any, or a template"
	default:
		name = inner.Type
	}
	switch suffix {
	case "[]":
		name = "list of " + name
	case ".*":
		name = "map to " + name
	}
	kind := []string{name}
	add := func(format string, n any) { kind = append(kind, fmt.Sprintf(format, n)) }
	if inner.Minimum != nil {
		add("at least %v", *inner.Minimum)
	}
	if inner.Maximum != nil {
		add("at most %v", *inner.Maximum)
	}
	length(add, inner.MinLength, inner.MaxLength, "characters")
	if len(inner.Enum) > 0 {
		var values []string
		for _, value := range inner.Enum {
			values = append(values, strings.Trim(string(value.Raw), `"`))
		}
		add("one of %s", spans(values))
	}
	length(add, first(s.MinItems, s.MinProperties), first(s.MaxItems, s.MaxProperties), "entries")
	if s.Default != nil {
		add("default %s", span(string(s.Default.Raw)))
	}
	if required {
		kind = append(kind, "required")
	}
	return kind
}

// length describes how long something may be.
func length(add func(string, any), least, most *int64, unit string) {
	if least != nil && *least == 1 {
		add("%s", "not empty")
	} else if least != nil && *least > 1 {
		add("at least %d "+unit, *least)
	}
	if most != nil {
		add("at most %d "+unit, *most)
	}
}

func first(values ...*int64) *int64 {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// about turns a Go comment into a sentence of its own, without the leading name.
func about(name, comment string) string {
	comment = strings.Join(strings.Fields(comment), " ")
	rest, named := strings.CutPrefix(comment, name+" ")
	if colon, ok := strings.CutPrefix(comment, name+": "); ok {
		return sentence(colon)
	}
	if !named {
		return sentence(comment)
	}
	verb, object, _ := strings.Cut(rest, " ")
	switch {
	case verb == "is" || verb == "are":
		return sentence(object)
	case strings.HasSuffix(verb, "s") && len(verb) > 3:
		return sentence(rest)
	}
	return sentence(comment)
}

// messages are the API server's messages for broken rules of a schema.
func messages(s *schema) []string {
	var all []string
	for _, rule := range s.XValidations {
		all = append(all, strings.Join(strings.Fields(rule.Message), " "))
	}
	return all
}

func items(lines []string) string {
	var out strings.Builder
	for _, line := range lines {
		out.WriteString("- " + strings.ReplaceAll(wrap(cell(line), width-2), "\n", "\n  ") + "\n")
	}
	return out.String()
}

func spans(values []string) string {
	var out []string
	for _, value := range values {
		if value == "" {
			value = `""`
		}
		out = append(out, span(value))
	}
	return strings.Join(out, ", ")
}
