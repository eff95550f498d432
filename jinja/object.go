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

// Evaluate evaluates every string value of object, at any depth, and gives a new
// object: a map[string]any, []any or scalar like the one given. Map keys and
// values that are not strings stay as they are. Where a template sets yaml to
// true its value is what the text means as YAML, with integers as int64. The
// limits hold for the object as a whole, but for OutputBytes, which holds for
// each string. The error is always an *Error and carries the field's path.
func Evaluate(ctx context.Context, object any, vars map[string]any, limits Limits) (any, error) {
	return EvaluateMarked(ctx, object, vars, limits, Marks{})
}

// Marks tell the text of values from the text of templates in what an evaluation gives.
// Neither mark may be anything that a template or a value can hold.
type Marks struct {
	// Dollar stands for each $ that an expression, a loop(), or a block of a filter or a
	// call writes. A $ outside of these is the template's own and stays.
	Dollar string
	// Edge stands between a $ of the template and the value that follows it.
	Edge string
}

// Strip gives text as it is without marks.
func (m Marks) Strip(text string) string {
	if m.Dollar == "" {
		return text
	}
	return strings.NewReplacer(m.Dollar, "$", m.Edge, "").Replace(text)
}

// EvaluateMarked is Evaluate with marks in all strings of the result, keys of YAML too.
// Without a mark for $ there are none.
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

// ownError gives the *Error that every error of this package is; were one of another
// kind, its text would be kept.
func ownError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: KindRuntime, Message: err.Error()}
}

func evaluateString(b *budget, source string, vars map[string]any, marks Marks) (any, *Error) {
	if !strings.Contains(source, "{") && len(source) <= b.maxOutput { // no tag can start; only the newlines are seen to
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
		e := ownError(err) // it is about the text made; the place is where the template asked for YAML
		e.locate(t.source, yamlAt)
		return nil, e
	}
	return value, nil
}

// fieldPath is the way to a field: keys and indices.
type fieldPath []any

// String writes spec.containers[0], and a key that is no plain name as ['a.b'].
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
