//go:build integration

package api

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// check fails unless the document describes such an answer.
func (d described) check(t *testing.T, r *reply, method, path string) {
	t.Helper()
	if r.status == http.StatusRequestHeaderFieldsTooLarge || strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		return // not answered by a call, or no JSON
	}
	path, _, _ = strings.Cut(path, "?")
	for pattern, calls := range d.Paths {
		call, has := calls[strings.ToLower(method)]
		if !has || !regexp.MustCompile("^"+regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(pattern, "[^/]+")+"$").MatchString(path) {
			continue
		}
		response, has := call.Responses[strconv.Itoa(r.status)]
		if !has {
			t.Errorf("%s answered %d, which the document of %s does not have: %s", r.call, r.status, call.OperationID, r.body)
			return
		}
		var value any
		if err := json.Unmarshal(r.body, &value); err != nil {
			t.Errorf("%s answered what is no JSON: %s", r.call, r.body)
			return
		}
		for _, wrong := range d.conforms(response.Content["application/json"].Schema, value, "body") {
			t.Errorf("%s answered what the document of %s does not have: %s", r.call, call.OperationID, wrong)
		}
	}
}

// resolve follows a reference within the document.
func (d described) resolve(schema map[string]any) map[string]any {
	for {
		ref, is := schema["$ref"].(string)
		if !is {
			return schema
		}
		schema = d.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
	}
}

// conforms lists where a value violates a schema of the document.
func (d described) conforms(schema map[string]any, value any, at string) []string {
	schema = d.resolve(schema)
	if schema == nil {
		return []string{at + ": no schema describes it"}
	}
	if !slices.Contains(texts(schema["type"]), kindOfJSON(value)) {
		return []string{fmt.Sprintf("%s: is %v, not %v", at, value, schema["type"])}
	}
	var wrong []string
	if enum, has := schema["enum"].([]any); has && !slices.Contains(enum, value) {
		wrong = append(wrong, fmt.Sprintf("%s: is %v, none of %v", at, value, enum))
	}
	switch value := value.(type) {
	case []any:
		items, _ := schema["items"].(map[string]any)
		for i, item := range value {
			wrong = append(wrong, d.conforms(items, item, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range texts(schema["required"]) {
			if _, has := value[name]; !has {
				wrong = append(wrong, at+"."+name+": is missing")
			}
		}
		for name, item := range value {
			property, known := properties[name].(map[string]any)
			if !known {
				property, known = schema["additionalProperties"].(map[string]any)
			}
			if !known {
				wrong = append(wrong, at+"."+name+": is not described")
				continue
			}
			wrong = append(wrong, d.conforms(property, item, at+"."+name)...)
		}
	}
	return wrong
}

// texts reads a string or a list of strings.
func texts(value any) []string {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		var all []string
		for _, item := range value {
			if text, is := item.(string); is {
				all = append(all, text)
			}
		}
		return all
	}
	return nil
}

func kindOfJSON(value any) string {
	switch value := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if value == math.Trunc(value) {
			return "integer"
		}
	}
	return "number"
}
