package jinja

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

// maxObjectDepth bounds maps and lists within one another in an object given to
// Evaluate or Check, as encoding/json does for what it reads.
const maxObjectDepth = 1000

// Evaluate evaluates every string in object as a template, at any depth, and returns a new
// object. An object is a string, a map[string]any or a []any of such values. Map keys and other
// values stay as they are.
//
// A template that sets the top-level variable yaml to true is replaced by the value that its text
// has as one YAML document. YAML is version 1.1, as in PyYAML, and the value is JSON-like:
// integers are int64, or json.Number if larger, keys are strings, and dates are strings.
//
// The limits hold for the whole object, except that OutputBytes holds for each string. ctx and
// vars are as for Execute. The error is always an *Error with the path of the field.
func Evaluate(ctx context.Context, object any, vars map[string]any, limits Limits) (any, error) {
	return EvaluateMarked(ctx, object, vars, limits, Marks{})
}

// Marks show which $ in a result comes from a value and which from the text of a template. Tarn
// needs to know, because Kubernetes expands $(NAME) in the result and a value must not use that.
// Choose marks that no template and no value can contain, such as random text.
type Marks struct {
	// Dollar replaces each $ that an expression writes, or a block of a filter or a call. A $
	// in the text of the template stays. Empty means no marks at all.
	Dollar string
	// Edge is inserted between a $ of the template and a value that follows it.
	Edge string
}

// Strip replaces the marks in text by what they stand for.
func (m Marks) Strip(text string) string {
	if m.Dollar == "" {
		return text
	}
	return strings.NewReplacer(m.Dollar, "$", m.Edge, "").Replace(text)
}

// EvaluateMarked is Evaluate with marks in all strings of the result, also in the keys of YAML.
// Errors have no marks.
func EvaluateMarked(ctx context.Context, object any, vars map[string]any, limits Limits, marks Marks) (any, error) {
	w := &objectWalker{budget: newBudget(ctx, limits), vars: vars, marks: marks}
	value, err := w.value(object, 0)
	if err != nil {
		err.Message = marks.Strip(err.Message)
		return nil, err
	}
	return value, nil
}

type objectWalker struct {
	*budget
	vars  map[string]any
	marks Marks
	path  fieldPath
}

func (w *objectWalker) value(v any, depth int) (any, *Error) {
	if depth > maxObjectDepth {
		return nil, &Error{Kind: KindLimit, Message: "the object is nested too deep", Path: w.path.String()}
	}
	switch v := v.(type) {
	case string:
		return w.template(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range sortedKeys(v) {
			w.path = append(w.path, key)
			value, err := w.value(v[key], depth+1)
			if err != nil {
				return nil, err
			}
			out[key] = value
			w.path = w.path[:len(w.path)-1]
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			w.path = append(w.path, i)
			value, err := w.value(v[i], depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = value
			w.path = w.path[:len(w.path)-1]
		}
		return out, nil
	}
	return v, nil
}

func (w *objectWalker) template(source string) (any, *Error) {
	value, err := evaluateString(w.budget, source, w.vars, w.marks)
	if err != nil {
		err.Path = w.path.String()
		return nil, err
	}
	return value, nil
}

// ownError returns err as an *Error, which every error of this package is.
func ownError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: KindRuntime, Message: err.Error()}
}

func evaluateString(b *budget, source string, vars map[string]any, marks Marks) (any, *Error) {
	if !strings.Contains(source, "{") && len(source) <= b.maxOutput { // no tag can start; only newlines are normalised
		if invalidUTF8(source) < 0 {
			return normalise(source), nil
		}
	}
	t, err := Parse(source)
	if err != nil {
		return nil, ownError(err)
	}
	result, yamlAt, err := t.run(b, vars, marks)
	if err != nil {
		return nil, ownError(err)
	}
	if !result.YAML {
		return result.Text, nil
	}
	value, err := parseYAML(b, result.Text)
	if err != nil {
		e := ownError(err) // it is about the rendered text; point at where the template set yaml
		e.locate(t.source, yamlAt)
		return nil, e
	}
	return value, nil
}

// fieldPath leads to a field: keys and indices.
type fieldPath []any

// String writes spec.containers[0], and a key that is not a plain name as ['a.b'].
func (p fieldPath) String() string {
	var b strings.Builder
	for _, part := range p {
		switch part := part.(type) {
		case int:
			b.WriteString("[" + strconv.Itoa(part) + "]")
		case string:
			switch {
			case !plainKey(part):
				b.WriteString("[" + reprString(part) + "]")
			case b.Len() > 0:
				b.WriteString("." + part)
			default:
				b.WriteString(part)
			}
		}
	}
	return b.String()
}

func plainKey(s string) bool {
	for _, r := range s {
		if r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return false
		}
	}
	return s != ""
}
