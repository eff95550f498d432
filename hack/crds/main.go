// Command crds lists what one set of resource definitions promised and another one breaks. Objects
// that were valid before must stay valid, so that an upgrade needs no conversion. It must not know
// which resources there are.
//
//	crds OLD NEW    directories of definitions; each line it prints is a broken promise
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "crds: give two directories: that of the last release and that of the next")
		os.Exit(2)
	}
	broken, err := run(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "crds:", err)
		os.Exit(2)
	}
	for _, line := range broken {
		fmt.Println(line)
	}
	if len(broken) > 0 {
		os.Exit(1)
	}
}

// run gives the promises of the old definitions that the new ones break.
func run(before, after string) ([]string, error) {
	old, err := read(before)
	if err != nil {
		return nil, err
	}
	now, err := read(after)
	if err != nil {
		return nil, err
	}
	return broken(old, now), nil
}

// read gives the definitions in a directory by name.
func read(folder string) (map[string]*apiext.CustomResourceDefinition, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err == nil && len(paths) == 0 {
		err = errors.New("it contains no definitions; give the directory of their .yaml files")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	all := map[string]*apiext.CustomResourceDefinition{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		one := &apiext.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[one.Name] = one
	}
	return all, nil
}

// broken compares definitions by name, and their versions by name.
func broken(old, now map[string]*apiext.CustomResourceDefinition) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(old)) {
		before, after := old[name], now[name]
		if after == nil {
			all = append(all, name+" is gone")
			continue
		}
		if before.Spec.Scope != after.Spec.Scope {
			all = append(all, fmt.Sprintf("%s: scope %s became %s", name, before.Spec.Scope, after.Spec.Scope))
		}
		for _, version := range before.Spec.Versions {
			if version.Served {
				all = append(all, brokenVersion(name+" "+version.Name, version, after)...)
			}
		}
	}
	return all
}

func brokenVersion(at string, before apiext.CustomResourceDefinitionVersion, definition *apiext.CustomResourceDefinition) []string {
	i := slices.IndexFunc(definition.Spec.Versions, func(v apiext.CustomResourceDefinitionVersion) bool { return v.Name == before.Name && v.Served })
	if i < 0 {
		return []string{at + " is no longer served"}
	}
	after := definition.Spec.Versions[i]
	c := &comparison{}
	c.besideSchema(at, before, after)
	if before.Schema == nil || after.Schema == nil {
		return c.broken
	}
	c.schema(at, *before.Schema.OpenAPIV3Schema, *after.Schema.OpenAPIV3Schema)
	return c.broken
}

// comparison collects what a new schema rejects and an old one allowed. It cannot know what a CEL
// rule rejects, so every new rule counts.
type comparison struct{ broken []string }

func (c *comparison) say(at, format string, a ...any) {
	c.broken = append(c.broken, at+": "+fmt.Sprintf(format, a...))
}

// besideSchema compares how a version answers requests: its selectable fields and its subresources.
func (c *comparison) besideSchema(at string, before, after apiext.CustomResourceDefinitionVersion) {
	for _, field := range before.SelectableFields {
		if !slices.Contains(after.SelectableFields, field) {
			c.say(at, "objects are no longer selected by %s", field.JSONPath)
		}
	}
	var none apiext.CustomResourceSubresources
	old, now := ptr.Deref(before.Subresources, none), ptr.Deref(after.Subresources, none)
	if old.Status != nil && now.Status == nil {
		c.say(at, "subresource status is gone")
	}
	switch {
	case old.Scale == nil:
	case now.Scale == nil:
		c.say(at, "subresource scale is gone")
	case !reflect.DeepEqual(old.Scale, now.Scale):
		c.say(at, "subresource scale is about other fields now")
	}
}

func (c *comparison) schema(at string, before, after apiext.JSONSchemaProps) {
	if before.Type != after.Type || before.Format != after.Format || before.XIntOrString != after.XIntOrString {
		c.say(at, "type %q became %q", before.Type+before.Format, after.Type+after.Format)
		return
	}
	if isTrue(before.XPreserveUnknownFields) && !isTrue(after.XPreserveUnknownFields) {
		c.say(at, "fields that nobody defined are no longer kept")
	}
	if before.Nullable && !after.Nullable {
		c.say(at, "null is no longer allowed")
	}
	if string(raw(before.Default)) != string(raw(after.Default)) {
		c.say(at, "default %s became %s", raw(before.Default), raw(after.Default))
	}
	c.limits(at, before, after)
	c.values(at, before, after)
	c.below(at, before, after)
}

// limits compares the limits of numbers, texts, lists and maps.
func (c *comparison) limits(at string, before, after apiext.JSONSchemaProps) {
	for _, one := range []struct {
		name          string
		before, after *int64
		sign          int64
	}{
		{"maxLength", before.MaxLength, after.MaxLength, 1}, {"minLength", before.MinLength, after.MinLength, -1},
		{"maxItems", before.MaxItems, after.MaxItems, 1}, {"minItems", before.MinItems, after.MinItems, -1},
		{"maxProperties", before.MaxProperties, after.MaxProperties, 1}, {"minProperties", before.MinProperties, after.MinProperties, -1},
	} {
		if one.after != nil && (one.before == nil || one.sign*(*one.after) < one.sign*(*one.before)) {
			c.say(at, "%s is %d now", one.name, *one.after)
		}
	}
	if after.Maximum != nil && (before.Maximum == nil || *after.Maximum < *before.Maximum) {
		c.say(at, "maximum is %g now", *after.Maximum)
	}
	if after.Minimum != nil && (before.Minimum == nil || *after.Minimum > *before.Minimum) {
		c.say(at, "minimum is %g now", *after.Minimum)
	}
	if after.Pattern != "" && after.Pattern != before.Pattern {
		c.say(at, "pattern is %q now", after.Pattern)
	}
}

// values compares the values and the rules.
func (c *comparison) values(at string, before, after apiext.JSONSchemaProps) {
	if len(before.Enum) == 0 && len(after.Enum) > 0 {
		c.say(at, "only some values are allowed now")
	}
	for _, value := range before.Enum {
		if len(after.Enum) > 0 && !slices.ContainsFunc(after.Enum, func(v apiext.JSON) bool { return string(v.Raw) == string(value.Raw) }) {
			c.say(at, "value %s is no longer allowed", value.Raw)
		}
	}
	for _, rule := range after.XValidations {
		if !slices.ContainsFunc(before.XValidations, func(r apiext.ValidationRule) bool { return r.Rule == rule.Rule }) {
			c.say(at, "rule %q is new", rule.Rule)
		}
	}
}

// below compares the fields, the items of a list and the values of a map.
func (c *comparison) below(at string, before, after apiext.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(before.Properties)) {
		field, ok := after.Properties[name]
		if !ok {
			c.say(at+"."+name, "is gone")
			continue
		}
		c.schema(at+"."+name, before.Properties[name], field)
	}
	for _, name := range after.Required {
		if !slices.Contains(before.Required, name) {
			c.say(at+"."+name, "is required now")
		}
	}
	if before.Items != nil && before.Items.Schema != nil && after.Items != nil && after.Items.Schema != nil {
		c.schema(at+"[]", *before.Items.Schema, *after.Items.Schema)
	}
	if before.AdditionalProperties != nil && before.AdditionalProperties.Schema != nil {
		if after.AdditionalProperties == nil || after.AdditionalProperties.Schema == nil {
			c.say(at, "any name was allowed")
			return
		}
		c.schema(at+"{}", *before.AdditionalProperties.Schema, *after.AdditionalProperties.Schema)
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

func raw(value *apiext.JSON) []byte {
	if value == nil {
		return []byte("none")
	}
	return value.Raw
}
