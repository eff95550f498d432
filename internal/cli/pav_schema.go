package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kyaml "sigs.k8s.io/yaml"

	"tarn.dev/tarn/api/crds"
	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/suggest"
)

// provisionerSchema is the schema of the installed resource. So lint knows the same fields as the
// API server.
var provisionerSchema = sync.OnceValues(func() (*apiextensionsv1.JSONSchemaProps, error) {
	text, err := crds.FS.ReadFile(pavv1.Group + "_pavprovisioners.yaml")
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := kyaml.Unmarshal(text, crd); err != nil {
		return nil, err
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == pavv1.GroupVersion.Version {
			return v.Schema.OpenAPIV3Schema, nil
		}
	}
	return nil, fmt.Errorf("the resource has no version %s", pavv1.GroupVersion.Version)
})

// provisionerName matches the names that a CSI driver of Tarn's may have.
var provisionerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// checkSchema checks what the API server's schema checks. It returns the provisioner without the
// fields that are wrong.
func (l *linter) checkSchema() *pavv1.PavProvisioner {
	p := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: l.name()}}
	schema, err := provisionerSchema()
	if err != nil {
		l.say(levelError, "", "the schema of PavProvisioner cannot be read: %v", err)
		return p
	}
	if version := l.text("apiVersion"); version != pavv1.GroupVersion.String() {
		l.say(levelError, "apiVersion", "%q is not served; write %s", version, pavv1.GroupVersion)
	}
	l.checkMetadata()
	spec, ok := l.object["spec"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(l.object)) {
		if key != "spec" && key != "metadata" && key != "status" && key != "apiVersion" && key != "kind" {
			l.say(levelError, key, "unknown field; %s", suggest.Hint(key, []string{"metadata", "spec"}))
		}
	}
	if !ok {
		l.say(levelError, "spec", "must be a mapping with provisioningModes and volumeStaging, not %s", kindName(l.object["spec"]))
		return p
	}
	wrong := map[string]bool{}
	specSchema := schema.Properties["spec"]
	l.checkObject("spec", &specSchema, spec, func(path string) { wrong[path] = true })
	l.decode(p, spec, wrong)
	return p
}

func (l *linter) checkMetadata() {
	name := l.name()
	switch {
	case l.object["metadata"] == nil, name == "":
		l.say(levelError, "metadata.name", "is missing; it is the name of the CSI driver and the provisioner of a StorageClass")
	case len(name) > 63 || !provisionerName.MatchString(name):
		l.say(levelError, "metadata.name", "%q must be a DNS label: at most 63 characters, lower-case letters, digits and '-', no dots; it is used as the CSI driver name", name)
	}
	steppod.CheckType("metadata", reflect.TypeFor[metav1.ObjectMeta](), l.object["metadata"], false, func(path, message string) {
		l.say(levelError, path, "%s", message)
	})
	if l.text("metadata", "namespace") != "" {
		l.say(levelWarning, "metadata.namespace", "has no effect; a PavProvisioner is cluster-wide")
	}
}

// decode reads the correct fields into a provisioner.
func (l *linter) decode(p *pavv1.PavProvisioner, spec map[string]any, wrong map[string]bool) {
	right := map[string]any{}
	for key, value := range spec {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(wrong)), func(path string) bool {
			return path == "spec."+key || strings.HasPrefix(path, "spec."+key+"[") || strings.HasPrefix(path, "spec."+key+".")
		}) {
			right[key] = l.knownFields(key, value)
		}
	}
	if _, known := right["provisioningModes"]; !known {
		// Without valid modes, the sections that are present show which modes the author intended.
		// Those modes decide which sections are required.
		modes := []any{pavv1.ModeStatic}
		if spec["volumeCreation"] != nil || spec["volumeDeletion"] != nil {
			modes = []any{pavv1.ModeDynamic, pavv1.ModeStatic}
		}
		right["provisioningModes"] = modes
	}
	data, err := json.Marshal(right)
	if err == nil {
		err = json.Unmarshal(data, &p.Spec)
	}
	if err != nil {
		l.say(levelError, "spec", "%v", err)
	}
}

// knownFields returns a section without unknown fields, and reports each of those.
func (l *linter) knownFields(section string, value any) any {
	given, ok := value.(map[string]any)
	known := steppod.KnownFields("spec." + section)
	if !ok || known == nil {
		return value
	}
	kept := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if slices.Contains(known, key) {
			kept[key] = given[key]
			continue
		}
		l.say(levelError, steppod.JoinField("spec."+section, key), "unknown field; %s", suggest.Hint(key, known))
	}
	return kept
}

// checkValue checks a value against a schema. It supports the parts of JSON schema that Tarn's
// resources use. It calls bad with each path that is wrong.
func (l *linter) checkValue(path string, schema *apiextensionsv1.JSONSchemaProps, value any, bad func(string)) {
	if ptr.Deref(schema.XPreserveUnknownFields, false) && len(schema.Properties) == 0 {
		return // anything
	}
	if want := schema.Type; value == nil || want != "" && jsonType(value) != want {
		l.say(levelError, path, "must be %s, not %s", article(want), kindName(value))
		bad(path)
		return
	}
	switch value := value.(type) {
	case map[string]any:
		l.checkObject(path, schema, value, bad)
	case []any:
		l.checkArray(path, schema, value, bad)
	}
	if len(schema.Enum) == 0 {
		return
	}
	var allowed []string
	for _, e := range schema.Enum {
		var text string
		if json.Unmarshal(e.Raw, &text) == nil {
			allowed = append(allowed, text)
		}
	}
	if text := fmt.Sprint(value); !slices.Contains(allowed, text) {
		l.say(levelError, path, "%q is not one of %s", text, strings.Join(allowed, ", "))
		bad(path)
	}
}

func (l *linter) checkObject(path string, schema *apiextensionsv1.JSONSchemaProps, fields map[string]any, bad func(string)) {
	known := slices.Sorted(maps.Keys(schema.Properties))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := steppod.JoinField(path, key)
		property, ok := schema.Properties[key]
		switch {
		case !ok:
			l.say(levelError, at, "unknown field; %s", suggest.Hint(key, known))
			bad(at)
		case fields[key] == nil && !slices.Contains(schema.Required, key):
		default:
			l.checkValue(at, &property, fields[key], bad)
		}
	}
	for _, key := range schema.Required {
		if fields[key] == nil {
			at := steppod.JoinField(path, key)
			l.say(levelError, at, "is missing; add it")
			bad(at)
		}
	}
}

func (l *linter) checkArray(path string, schema *apiextensionsv1.JSONSchemaProps, items []any, bad func(string)) {
	if least := schema.MinItems; least != nil && int64(len(items)) < *least {
		l.say(levelError, path, "must have at least %d, not %d", *least, len(items))
		bad(path)
	}
	if most := schema.MaxItems; most != nil && int64(len(items)) > *most {
		l.say(levelError, path, "must have at most %d, not %d", *most, len(items))
		bad(path)
	}
	seen := map[string]bool{}
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", path, i)
		if text := fmt.Sprint(item); schema.XListType != nil && *schema.XListType == "set" && seen[text] {
			l.say(levelError, at, "%q appears twice; remove one", text)
			bad(at)
		} else {
			seen[text] = true
		}
		if schema.Items != nil && schema.Items.Schema != nil {
			l.checkValue(at, schema.Items.Schema, item, bad)
		}
	}
}

// jsonType returns the name of a value's type in a schema.
func jsonType(value any) string {
	switch v := value.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case json.Number:
		if !bytes.ContainsAny([]byte(v), ".eE") {
			return "integer"
		}
	}
	return "number"
}

// kindName returns the name of a value's type for messages.
func kindName(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string, bool, []any, map[string]any:
		return article(jsonType(value))
	}
	return "a number"
}

func article(kind string) string {
	switch kind {
	case "array":
		return "a list"
	case "object":
		return "a mapping"
	case "integer":
		return "a whole number"
	}
	return "a " + kind
}
