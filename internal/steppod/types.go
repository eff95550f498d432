package steppod

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"tarn.dev/tarn/internal/suggest"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// CheckType checks a value, made of maps, lists and scalars, against the Go type of an API object.
// It finds unknown fields and values of a wrong type. With templates set, a template may stand for
// anything. It calls wrong for each path with a mistake.
func CheckType(path string, t reflect.Type, value any, templates bool, wrong func(path, message string)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if text, ok := value.(string); value == nil || ok && templates && isTemplate(text) {
		return
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return // quantities, times: their own parser reports mistakes
	}
	mismatch := func(want string) { wrong(path, "must be "+want+", not "+kindOf(value)) }
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		fields, ok := value.(map[string]any)
		if !ok {
			mismatch("a mapping")
			return
		}
		checkFields(path, t, fields, templates, wrong)
	case reflect.Slice:
		items, ok := value.([]any)
		if !ok {
			if _, text := value.(string); !text || t.Elem().Kind() != reflect.Uint8 {
				mismatch("a list")
			}
			return
		}
		for i, item := range items {
			CheckType(fmt.Sprintf("%s[%d]", path, i), t.Elem(), item, templates, wrong)
		}
	case reflect.String:
		if _, ok := value.(string); !ok {
			mismatch("a string, in quotes")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			mismatch("true or false")
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if !isWhole(value) {
			mismatch("a whole number")
		}
	}
}

func checkFields(path string, t reflect.Type, fields map[string]any, templates bool, wrong func(path, message string)) {
	known := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		JSONFields(t, known)
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := JoinField(path, key)
		of, ok := known[key]
		switch {
		case t.Kind() == reflect.Map:
			of = t.Elem()
		case !ok:
			wrong(at, "unknown field; "+suggest.Hint(key, slices.Sorted(maps.Keys(known))))
			continue
		}
		CheckType(at, of, fields[key], templates, wrong)
	}
}

// JSONFields collects the fields of a struct under their JSON names, including those of embedded
// structs.
func JSONFields(t reflect.Type, into map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (strings.Contains(options, "inline") || f.Anonymous):
			JSONFields(f.Type, into)
		case name != "":
			into[name] = f.Type
		}
	}
}

func isWhole(value any) bool {
	switch v := value.(type) {
	case int64:
		return true
	case float64:
		return v == math.Trunc(v)
	case json.Number:
		_, err := v.Int64()
		return err == nil
	}
	return false
}

// plainKey matches a key that needs no quoting in a path.
var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// JoinField writes paths like the template engine: spec.containers[0], or ['a.b'] for a key that is
// not a plain name.
func JoinField(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "['" + key + "']"
	case path == "":
		return key
	}
	return path + "." + key
}
